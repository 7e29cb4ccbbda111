"""Bytes and file descriptors between the processes of one conversation.

Bytes go through the key-value store of JAX's coordination service, behind a barrier
with a deadline that succeeds on all processes or on none. Descriptors go through
`_links`.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax

from jax_symm import _jax_compat
from jax_symm._helper_thread import HelperThread
from jax_symm._links import Deadline, Links, host_id, wait_or_lost
from jax_symm.errors import (
    SymmError,
    SymmPeerLostError,
    SymmStateError,
    SymmTimeoutError,
    SymmUnavailableError,
    from_name,
)


class Job:
    """What lives as long as JAX's coordination service does in this process.

    Attributes:
      client: The coordination client.
      links: The sockets to the other processes of this host.
      refused: Why no further conversation with other processes is possible, or None.
    """

    def __init__(self, client: Any):
        self.client = client
        self.links = Links(jax.process_index())
        self.refused: str | None = None
        self._conversations: collections.Counter[tuple[int, ...]] = (
            collections.Counter()
        )

    def next_conversation(self, processes: tuple[int, ...]) -> str:
        """The key prefix of the next conversation of these processes."""
        number = self._conversations[processes]
        self._conversations[processes] += 1
        members = "-".join(map(str, processes))
        return f"jax_symm/{members}/{number}"


_job: Job | None = None
_job_lock = threading.Lock()


def current_job() -> Job | None:
    """The job of this process, or None where JAX runs as one process."""
    global _job
    client = _jax_compat.coordination_client()
    if client is None:
        return None
    with _job_lock:
        if _job is None or _job.client is not client:
            _job = Job(client)
        return _job


class Exchange:
    """Moves bytes and descriptors between the processes of one conversation.

    Processes are numbered by their position among `processes`. Every process makes the
    same calls in the same order, whatever happened to it.

    Attributes:
      processes: Indices of the processes, ascending, as JAX numbers them.
      process_index: This process's position.
      process_count: How many there are.
    """

    def __init__(
        self,
        processes: tuple[int, ...],
        purpose: str,
        describe: Callable[[int], str],
        deadline: Deadline,
    ):
        """Begins the conversation; no message passes yet.

        Args:
          processes: Indices of the processes that take part; this one among them.
          purpose: What the conversation is for, as messages name it.
          describe: Names a process and its ranks, given its index.
          deadline: For the whole conversation.

        Raises:
          SymmStateError: An earlier vote of this process expired, or jax.distributed is
            not initialised.
        """
        self.processes = processes
        self.process_index = processes.index(jax.process_index())
        self.process_count = len(processes)
        self.purpose = purpose
        self.deadline = deadline
        self.key = ""
        self._describe = describe
        self._job: Job | None = None
        self._meetings = 0
        self._written: list[str] = []
        self._posts: dict[str, str] = {}
        self._endpoints: list[dict[str, str]] = []
        if len(processes) == 1:
            return
        self._job = current_job()
        if self._job is None:
            raise SymmStateError(
                f"{purpose}: the mesh spans {len(processes)} processes, but "
                "jax.distributed is not initialised"
            )
        if self._job.refused:
            raise SymmStateError(f"{purpose}: refused: {self._job.refused}")
        self.key = self._job.next_conversation(processes)

    @property
    def links(self) -> Links | None:
        """The sockets of this process, or None in a conversation of one process."""
        return self._job.links if self._job else None

    def allgather(self, tag: str, payload: bytes) -> list[bytes]:
        """Gives every process the payload of every process, by position.

        Raises:
          SymmTimeoutError: A process did not arrive; the text names its ranks.
          SymmPeerLostError: A process is gone.
        """
        if self._job is None:
            return [payload]
        client, place = self._job.client, self._meet(tag, payload)
        return [
            bytes(client.key_value_try_get_bytes(f"{place}/{p}"))
            for p in self.processes
        ]

    def barrier(self, tag: str) -> None:
        """Waits until every process has come here.

        Raises:
          SymmError: As `allgather`.
        """
        if self._job is not None:
            self._meet(tag, b"")

    def connect(self) -> SymmError | None:
        """Connects to the other processes of this host.

        Returns:
          What went wrong in this process alone, for a round to settle.

        Raises:
          SymmError: As `allgather`.
        """
        if self._job is None:
            return None
        links = self._job.links
        endpoint = {
            "host": host_id(),
            "address": base64.b64encode(links.address).decode(),
            "nonce": links.nonce.hex(),
        }
        records = self.allgather("endpoint", json.dumps(endpoint).encode())
        self._endpoints = [json.loads(r) for r in records]
        try:
            for position in self._others():
                peer = self._endpoints[position]
                if peer["host"] == endpoint["host"]:
                    address = base64.b64decode(peer["address"])
                    nonce = bytes.fromhex(peer["nonce"])
                    process = self.processes[position]
                    links.connect(process, address, nonce, self.deadline)
        except SymmError as error:
            return error
        return None

    def hosts(self) -> list[str]:
        """The host of each process, by position; known after `connect`."""
        return [e["host"] for e in self._endpoints]

    def swap_fds(
        self, tag: str, fds: Mapping[int, Sequence[int]]
    ) -> dict[int, list[int]]:
        """Sends descriptors to processes and receives those sent to this one.

        Every process of the conversation calls it, with nothing to send if it has none.

        Args:
          tag: Names the exchange within the conversation.
          fds: Descriptors by position of their destination; they stay open here.

        Returns:
          The descriptors received, by position of their source; the caller owns them.

        Raises:
          SymmUnavailableError: The processes are on several hosts.
          SymmTimeoutError: A process sent nothing in time.
          SymmPeerLostError: A process is gone.
        """
        if self._job is None:
            return {}
        links = self._job.links
        if len(set(self.hosts())) != 1:
            raise SymmUnavailableError(
                f"{self.purpose}: descriptors pass between processes of one host only, "
                f"and the mesh has processes on {len(set(self.hosts()))}"
            )
        tag = f"{self.key}/{tag}"
        received: dict[int, list[int]] = {}
        try:
            for position in self._others():
                peer = self.processes[position]
                links.send_fds(peer, tag, fds.get(position, ()), self.deadline)
            for position in self._others():
                peer = self.processes[position]
                received[position] = links.receive_fds(peer, tag, self.deadline)
        except BaseException:
            for fd in (fd for batch in received.values() for fd in batch):
                os.close(fd)
            links.forget_fds(tag)
            raise
        return received

    def post(self, key: str, text: str) -> None:
        """Leaves a text for the others to `read`; the first text stays."""
        if self._job is None:
            self._posts.setdefault(key, text)
            return
        with contextlib.suppress(Exception):
            self._job.client.key_value_set_bytes(
                f"{self.key}/post/{key}", text.encode()
            )

    def read(self, key: str) -> str:
        """A text left with `post`, or "" where there is none."""
        if self._job is None:
            return self._posts.get(key, "")
        try:
            name = f"{self.key}/post/{key}"
            return bytes(self._job.client.key_value_try_get_bytes(name)).decode()
        except Exception:
            return ""

    def expire(self, reason: str) -> NoReturn:
        """Gives the conversation up, and every later one with other processes."""
        if self._job is not None:
            self._job.refused = reason
        raise SymmTimeoutError(reason)

    def raise_lost(self, lost: Mapping[int, str], where: str) -> NoReturn:
        """Raises the loss of processes, in the words of whoever saw it first.

        Raises:
          SymmPeerLostError: Always.
        """
        names = "; ".join(f"{self._describe(p)}: {how}" for p, how in lost.items())
        self._raise_agreed(
            SymmPeerLostError(f"{self.purpose}: {where}: lost {names}"), where
        )

    def _others(self) -> list[int]:
        return [i for i in range(self.process_count) if i != self.process_index]

    def _meet(self, tag: str, payload: bytes) -> str:
        """Leaves a payload and passes the barrier; returns where the payloads are."""
        assert self._job is not None
        place = f"{self.key}/{self._meetings}"
        self._meetings += 1
        key = f"{place}/{jax.process_index()}"
        self._job.client.key_value_set_bytes(key, payload)
        self._written.append(key)
        self._barrier(tag, place)
        return place

    def _barrier(self, tag: str, place: str) -> None:
        """All processes pass, or all raise."""
        assert self._job is not None
        client = self._job.client
        barrier = HelperThread(
            "jax_symm-barrier",
            lambda: client.wait_at_barrier(
                place,
                max(1, int(self.deadline.left_s() * 1000)),
                process_ids=list(self.processes),
            ),
        )
        # The service looks for what is overdue once a second.
        patience = Deadline(self.deadline.left_s() + 1.5)
        lost = wait_or_lost(barrier.done, self._job.links, self.processes, patience)
        if lost:
            self.raise_lost(lost, f"round {tag!r}")
        if not barrier.done.is_set():
            self._raise_missing(tag, place, None)
        if error := barrier.failure():
            self._raise_missing(tag, place, error)
        self._forget_older()

    def _raise_missing(self, tag: str, place: str, cause: Exception | None) -> NoReturn:
        """Names the processes that never wrote their key of this round."""
        assert self._job is not None
        missing = []
        for p in self.processes:
            try:
                self._job.client.key_value_try_get_bytes(f"{place}/{p}")
            except Exception:
                missing.append(self._describe(p))
        names = "; ".join(missing) or "no one any longer, but too late"
        self._raise_agreed(
            SymmTimeoutError(
                f"{self.purpose}: round {tag!r}: not all processes of the mesh arrived "
                f"within {self.deadline.seconds:g} s; missing: {names}. Every process "
                "of the mesh must make the same calls of jax_symm in the same order"
            ),
            tag,
            cause,
        )

    def _raise_agreed(
        self, error: SymmError, where: str, cause: Exception | None = None
    ) -> NoReturn:
        """Raises the error that the first process to give up has posted."""
        self.post(where, f"{type(error).__name__}\n{error}")
        name, _, text = self.read(where).partition("\n")
        raise (from_name(name, text) if name else error) from cause

    def _forget_older(self) -> None:
        """Deletes what every process has read by now: all but the newest key."""
        assert self._job is not None
        for key in self._written[:-1]:
            self._job.client.key_value_delete(key)
        del self._written[:-1]
