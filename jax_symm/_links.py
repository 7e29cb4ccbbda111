"""Sockets between the processes of one host: descriptors pass, and a death is seen.

One connection per pair of processes, made on first need and kept for the life of the
process. A single thread reads them all, so an end-of-file is seen at once: the kernel
closes a killed process's sockets. Addresses are abstract and given by the kernel: no
name in a file system, none to clash over, none left behind.
"""

from __future__ import annotations

import array
import contextlib
import logging
import os
import pathlib
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from jax_symm.errors import SymmPeerLostError, SymmTimeoutError

_log = logging.getLogger("jax_symm")

_MAX_FDS = 250  # Linux passes at most SCM_MAX_FD = 253 descriptors in one message.
_FRAME_BYTES = 4096
_HELLO = struct.Struct("!16si")
_POLL_S = 0.05
_GRACE_S = 0.5


class Deadline:
    """A point in time after which nothing waits any longer."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())


def host_id() -> str:
    """Equal in two processes exactly if a socket can pass between them."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}"


class Links:
    """The connections of this process to the others of its host.

    Thread-safe. Reading happens on a daemon thread of its own.
    """

    def __init__(self, process_index: int):
        self.process_index = process_index
        self.nonce = secrets.token_bytes(16)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")
        self._listener.listen(1024)
        self.address: bytes = self._listener.getsockname()
        self._changed = threading.Condition()
        self._sockets: dict[int, socket.socket] = {}
        self._inbox: dict[tuple[int, str], list[int]] = {}
        self._lost: dict[int, str] = {}
        self._forgotten: set[str] = set()
        self._left: set[tuple[int, str]] = set()
        self._watchers: list[Callable[[int], None]] = []
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        os.register_at_fork(after_in_child=self._close_in_child)
        threading.Thread(
            target=self._read_all, name="jax_symm-links", daemon=True
        ).start()

    def connect(
        self, peer: int, address: bytes, nonce: bytes, deadline: Deadline
    ) -> None:
        """Makes the connection to `peer`: the higher process index calls the lower.

        Raises:
          SymmTimeoutError: It did not come about in time.
          SymmPeerLostError: The peer was connected before and is gone.
        """
        with self._changed:
            known = peer in self._sockets or peer in self._lost
        if not known and peer < self.process_index:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(max(deadline.left_s(), 1e-3))
            try:
                connection.connect(address)
                if not _same_user(connection):
                    raise PermissionError("its address is another user's")
                connection.send(_HELLO.pack(nonce, self.process_index))
            except OSError as error:
                connection.close()
                raise SymmPeerLostError(
                    f"process {self.process_index} cannot reach process {peer}: {error}"
                ) from error
            self._add(peer, connection)
        self._wait(lambda: peer in self._sockets, peer, "connect", deadline)

    def send_fds(
        self, peer: int, tag: str, fds: Sequence[int], deadline: Deadline
    ) -> None:
        """Sends descriptors, maybe none, to `peer` under `tag`; they stay open here."""
        batches = [fds[i : i + _MAX_FDS] for i in range(0, len(fds), _MAX_FDS)] or [()]
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            self._send(
                peer, f"{'F' if last else 'P'}{len(batch)} {tag}", batch, deadline
            )

    def receive_fds(self, peer: int, tag: str, deadline: Deadline) -> list[int]:
        """The descriptors that `peer` sent under `tag`; the caller owns them.

        Raises:
          SymmTimeoutError: They did not come in time.
          SymmPeerLostError: The peer is gone.
        """
        self._wait(lambda: (peer, tag) in self._inbox, peer, tag, deadline)
        with self._changed:
            return self._inbox.pop((peer, tag))

    def forget_fds(self, tag: str) -> None:
        """Closes descriptors sent under `tag` that nobody will receive, late ones too.

        They would keep a peer's memory alive.
        """
        with self._changed:
            self._forgotten.add(tag)
            names = (tag, tag + "\0")
            dropped = [key for key in self._inbox if key[1] in names]
            fds = [fd for key in dropped for fd in self._inbox.pop(key)]
        for fd in fds:
            os.close(fd)

    def say_left(self, workspace: str) -> None:
        """Tells every peer that this process lets go of a workspace on purpose."""
        with self._changed:
            peers = list(self._sockets)
        for peer in peers:
            with contextlib.suppress(SymmPeerLostError, SymmTimeoutError):
                self._send(peer, f"L0 {workspace}", (), Deadline(1.0))

    def has_left(self, peer: int, workspace: str) -> bool:
        """Whether `peer` let go of the workspace on purpose."""
        with self._changed:
            return (peer, workspace) in self._left

    def lost(self, peers: Sequence[int]) -> dict[int, str]:
        """Those of `peers` that are gone, with how it was seen."""
        with self._changed:
            return {p: self._lost[p] for p in peers if p in self._lost}

    def watch(self, watcher: Callable[[int], None]) -> None:
        """Calls `watcher(peer)`, on the reading thread, when a peer is gone."""
        with self._changed:
            self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[int], None]) -> None:
        """Undoes `watch`."""
        with self._changed, contextlib.suppress(ValueError):
            self._watchers.remove(watcher)

    def _wait(
        self, ready: Callable[[], bool], peer: int, what: str, deadline: Deadline
    ) -> None:
        with self._changed:
            while not ready():
                if peer in self._lost:
                    raise SymmPeerLostError(
                        f"process {peer} is gone: {self._lost[peer]}"
                    )
                if not self._changed.wait(min(deadline.left_s(), 1.0)) and (
                    deadline.left_s() == 0
                ):
                    raise SymmTimeoutError(
                        f"process {peer} sent nothing for {what!r} within "
                        f"{deadline.seconds:g} s"
                    )

    def _send(
        self, peer: int, text: str, fds: Sequence[int], deadline: Deadline
    ) -> None:
        with self._changed:
            connection = self._sockets.get(peer)
            if connection is None:
                raise SymmPeerLostError(
                    f"process {peer} is gone: {self._lost.get(peer, 'no connection')}"
                )
        try:
            connection.settimeout(max(deadline.left_s(), 1e-3))
            socket.send_fds(connection, [text.encode()], list(fds))
        except TimeoutError as error:
            raise SymmTimeoutError(f"process {peer} reads nothing") from error
        except OSError as error:
            raise SymmPeerLostError(f"process {peer} is gone: {error}") from error

    def _add(self, peer: int, connection: socket.socket) -> None:
        with self._changed:
            self._sockets[peer] = connection
            self._selector.register(
                connection, selectors.EVENT_READ, lambda: self._read(peer, connection)
            )
            self._changed.notify_all()
        os.write(self._wake_write, b"!")

    def _read_all(self) -> None:
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _woken(self) -> None:
        os.read(self._wake_read, 4096)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            _log.warning("cannot take a connection of another process: %s", error)
            time.sleep(_POLL_S)  # it is still there
            return
        # Strangers first: nobody else may keep this thread waiting.
        if not _same_user(connection):
            connection.close()
            return
        connection.settimeout(5.0)
        try:
            nonce, peer = _HELLO.unpack(connection.recv(_HELLO.size))
        except (OSError, struct.error):
            connection.close()
            return
        if not secrets.compare_digest(nonce, self.nonce):
            connection.close()
            return
        self._add(peer, connection)

    def _read(self, peer: int, connection: socket.socket) -> None:
        try:
            text, fds, truncated = _receive(connection)
        except OSError as error:
            self._lose(peer, connection, str(error))
            return
        if not text:
            self._lose(peer, connection, "its connection ended")
            return
        header, _, tag = text.decode().partition(" ")
        if truncated or header[1:] != str(len(fds)):
            for fd in fds:
                os.close(fd)
            self._lose(peer, connection, f"a message ({tag!r}) came truncated")
            return
        self._deliver(peer, header[0], tag, fds)

    def _deliver(self, peer: int, kind: str, tag: str, fds: list[int]) -> None:
        with self._changed:
            if kind == "L":
                self._left.add((peer, tag))
            elif tag in self._forgotten:
                for fd in fds:
                    os.close(fd)
                return
            else:
                self._inbox.setdefault((peer, tag + "\0"), []).extend(fds)
            if kind == "F":
                self._inbox[(peer, tag)] = self._inbox.pop((peer, tag + "\0"))
            self._changed.notify_all()

    def _lose(self, peer: int, connection: socket.socket, how: str) -> None:
        with self._changed:
            self._selector.unregister(connection)
            self._sockets.pop(peer, None)
            self._lost[peer] = how
            watchers = list(self._watchers)
            self._changed.notify_all()
        connection.close()
        for watcher in watchers:
            # Whatever one of them does, the thread has the other connections to read.
            try:
                watcher(peer)
            except Exception:
                _log.exception("process %d is gone; not everybody could hear it", peer)

    def _close_in_child(self) -> None:
        """A forked child must not keep the connections of its parent open."""
        for sock in (self._listener, *self._sockets.values()):
            with contextlib.suppress(OSError):
                os.close(sock.detach())
        self._sockets = {}


def wait_or_lost(
    done: threading.Event, links: Links | None, peers: Sequence[int], deadline: Deadline
) -> dict[int, str]:
    """Waits for `done`, the deadline, or a lost peer; returns the peers lost."""
    while not done.wait(min(_POLL_S, deadline.left_s())):
        lost = links.lost(peers) if links else {}
        # A process that leaves right after a round ends has not harmed that round.
        if lost and not done.wait(_GRACE_S):
            return lost
        if deadline.left_s() == 0:
            break
    return {}


def _same_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("iii", credentials)
    return bool(uid == os.geteuid())


def _receive(connection: socket.socket) -> tuple[bytes, list[int], bool]:
    """One message with its descriptors, close-on-exec, and whether it was cut short."""
    # Not socket.recv_fds: it drops the flags, and descriptors would survive an exec.
    fds = array.array("i")
    text, ancillary, flags, _ = connection.recvmsg(
        _FRAME_BYTES,
        socket.CMSG_SPACE(_MAX_FDS * fds.itemsize),
        socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT,
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return text, list(fds), bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC))
