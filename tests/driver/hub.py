"""Ranks without jax: warm worker processes, and the hub through which they meet.

A worker runs one conversation after another. What it would say over jax's votes and the
sockets of the exchange goes through a socket pair to the hub, in the test's process, which
answers when all have arrived, or tells the others who is missing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jax_symm.errors import SymmInternalError, SymmPeerLostError, SymmTimeoutError

_MAX_BYTES = 1 << 18
_MAX_FDS = 64


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Sends one message with descriptors."""
    socket.send_fds(sock, [pickle.dumps(message)], list(fds))


def receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """Receives one message. Raises EOFError when the other side is gone."""
    data, fds, flags, _ = socket.recv_fds(
        sock, _MAX_BYTES, _MAX_FDS, socket.MSG_CMSG_CLOEXEC
    )
    assert not flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC)
    if not data:
        raise EOFError
    return pickle.loads(data), fds


class Line:
    """A worker's end: the Ballot and the Exchange of the product's protocols."""

    def __init__(self, sock: socket.socket, index: int, count: int):
        self._sock = sock
        self.process_index = index
        self.process_count = count
        self.rounds = 0

    def _ask(self, message: Any, fds: Sequence[int] = ()) -> tuple[Any, list[int]]:
        send(self._sock, message, fds)
        answer, received = receive(self._sock)
        if isinstance(answer, Exception):
            raise answer
        return answer, received

    def vote(self, round_name: str, codes: Mapping[int, int]) -> dict[int, int]:
        self.rounds += 1
        everyone, _ = self._ask(("meet", f"vote {round_name}", dict(codes), ()))
        verdicts: dict[int, int] = {}
        for one in everyone:
            for group, code in one.items():
                verdicts[group] = min(code, verdicts.get(group, code))
        return verdicts

    def post(self, key: str, text: str) -> None:
        self._ask(("post", key, text))

    def read(self, key: str) -> str:
        return str(self._ask(("read", key))[0])

    def allgather(self, tag: str, payload: bytes) -> list[bytes]:
        self.rounds += 1
        everyone, _ = self._ask(("meet", f"gather {tag}", payload, ()))
        return list(everyone)

    def swap_fds(
        self, tag: str, fds: Mapping[int, Sequence[int]]
    ) -> dict[int, list[int]]:
        self.rounds += 1
        order = sorted(fds)
        counts = [(process, len(fds[process])) for process in order]
        flat = [fd for process in order for fd in fds[process]]
        sources, received = self._ask(("meet", f"swap {tag}", None, counts), flat)
        result: dict[int, list[int]] = {}
        for source in sources:
            result.setdefault(source, []).append(received.pop(0))
        return result


def _work(sock: socket.socket, index: int, environment: dict[str, str]) -> None:
    """A worker's life: run what the hub asks for."""
    os.environ.update(environment)
    import ranks

    while True:
        try:
            (name, count, arguments), _ = receive(sock)
        except EOFError:
            return
        line = Line(sock, index, count)
        try:
            outcome = getattr(ranks, name)(line, **arguments)
        except Exception as error:
            outcome = error
        send(sock, ("done", outcome, line.rounds))


class Worker:
    """The hub's end of a worker."""

    def __init__(self, index: int, environment: dict[str, str]):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["ranks", "pytest"])
        self.index = index
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = context.Process(
            target=_work, args=(theirs, index, environment), daemon=True
        )
        self.process.start()
        theirs.close()

    def end(self) -> None:
        """Ends the worker and waits for it."""
        self.sock.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


class Lost:
    """What the hub reports of a worker that died or never answered."""

    def __init__(self, why: str):
        self.why = why

    def __repr__(self) -> str:
        return f"Lost({self.why})"


class Hub:
    """Runs conversations over `count` workers, replacing those that a test used up."""

    def __init__(
        self, environments: Sequence[dict[str, str]], deadline_s: float = 60.0
    ):
        self._environments = list(environments)
        self._workers: list[Worker | None] = [None] * len(environments)
        self._deadline_s = deadline_s

    def close(self) -> None:
        """Ends all workers."""
        for index in range(len(self._workers)):
            self.discard(index)

    def discard(self, index: int) -> None:
        """Ends a worker; the next conversation starts a new one."""
        worker, self._workers[index] = self._workers[index], None
        if worker is not None:
            worker.end()

    def run(
        self,
        name: str,
        arguments: Mapping[str, Any],
        only: Sequence[int] | None = None,
        deadline_s: float | None = None,
    ) -> list[Any]:
        """Runs `ranks.<name>(line, **arguments)` in every worker.

        Args:
          only: The workers that take part; None for all.
          deadline_s: Longest time in which nothing happens, in seconds.

        Returns:
          For each worker what it returned, the exception it raised, or Lost.
        """
        indices = list(range(len(self._workers)) if only is None else only)
        for index in indices:
            if self._workers[index] is None:
                self._workers[index] = Worker(index, self._environments[index])
        workers = [self._workers[index] for index in indices]
        meeting = _Meeting(
            [w for w in workers if w is not None], deadline_s or self._deadline_s
        )
        for worker in meeting.workers:
            send(worker.sock, (name, len(indices), dict(arguments)))
        outcomes = meeting.hold()
        for index, outcome in zip(indices, outcomes, strict=True):
            if isinstance(outcome, Lost):
                self.discard(index)
        self.rounds = meeting.rounds
        return outcomes


class _Meeting:
    """One conversation."""

    def __init__(self, workers: Sequence[Worker], deadline_s: float):
        self.workers = workers
        self._deadline_s = deadline_s
        self._board: dict[str, str] = {}
        self._waiting: dict[int, tuple[Any, list[int]]] = {}
        self._outcomes: dict[int, Any] = {}
        self._given_up: set[int] = set()
        self._closed: Exception | None = None
        self.rounds: dict[int, int] = {}

    def _open(self) -> bool:
        return len(self._outcomes.keys() | self._given_up) < len(self.workers)

    def hold(self) -> list[Any]:
        """Serves the workers until each has answered, died or overrun the deadline."""
        with selectors.DefaultSelector() as selector:
            for place, worker in enumerate(self.workers):
                selector.register(worker.sock, selectors.EVENT_READ, place)
            quiet_since = time.monotonic()
            while self._open():
                left = quiet_since + self._deadline_s - time.monotonic()
                ready = selector.select(max(0.0, left))
                for key, _ in ready:
                    if key.data not in self._outcomes:
                        self._serve(key.data)
                    else:
                        selector.unregister(key.fileobj)
                    quiet_since = time.monotonic()
                if not ready:
                    self._expire()
                    quiet_since = time.monotonic()
        never = Lost("never answered")
        return [self._outcomes.get(place, never) for place in range(len(self.workers))]

    def _serve(self, place: int) -> None:
        sock = self.workers[place].sock
        try:
            message, fds = receive(sock)
        except (EOFError, ConnectionResetError):
            self._outcomes[place] = Lost("died")
            self._closed = SymmPeerLostError(f"process {place} is gone")
            self._dismiss()
            return
        if message[0] == "post":
            self._board[message[1]] = message[2]
            send(sock, None)
        elif message[0] == "read":
            send(sock, self._board.get(message[1], ""))
        elif message[0] == "done":
            self._outcomes[place], self.rounds[place] = message[1:]
        else:
            self._waiting[place] = (message, fds)
            if self._closed is not None:
                self._dismiss()
            elif len(self._waiting) == len(self.workers):
                self._meet()

    def _meet(self) -> None:
        """All are here: everyone learns what everyone brought."""
        waiting, self._waiting = self._waiting, {}
        tags = {message[1] for message, _ in waiting.values()}
        if len(tags) != 1:
            answer: Any = SymmInternalError(f"the rounds diverged: {sorted(tags)}")
            for place in waiting:
                send(self.workers[place].sock, answer)
            return
        everyone = [waiting[place][0][2] for place in sorted(waiting)]
        mail: dict[int, list[tuple[int, int]]] = {place: [] for place in waiting}
        for source in sorted(waiting):
            message, fds = waiting[source]
            for destination, count in message[3]:
                mail[destination] += [(source, fds.pop(0)) for _ in range(count)]
        for place in sorted(waiting):
            sources = [source for source, _ in mail[place]]
            fds = [fd for _, fd in mail[place]]
            is_swap = next(iter(tags)).startswith("swap ")
            send(self.workers[place].sock, sources if is_swap else everyone, fds)
            for fd in fds:
                os.close(fd)

    def _expire(self) -> None:
        """Nothing moved for a deadline: whoever is not waiting is missing."""
        missing = [
            place
            for place in range(len(self.workers))
            if place not in self._waiting and place not in self._outcomes
        ]
        self._closed = self._closed or SymmTimeoutError(
            "missing: " + ", ".join(f"process {place}" for place in missing)
        )
        self._given_up |= set(missing)
        self._dismiss()

    def _dismiss(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for place, (_, fds) in waiting.items():
            for fd in fds:
                os.close(fd)
            with contextlib.suppress(OSError):
                send(self.workers[place].sock, self._closed)
