"""Rounds: what every process does, then one vote, and no exception in between.

Also what a round is given: the groups, the ballot, the exchange; and how handles of
memory travel in one. This file knows neither jax nor sockets, so the same rounds serve
memory of the host and of GPUs, and tests without either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from jax_symm.errors import SymmError, SymmPeerLostError, from_name

#: The vote of a group in which nothing failed.
OK = 2**31 - 1
_RANK_BITS = 16


class Step(enum.IntEnum):
    """What a rank may fail at, numbered in the order of time.

    A vote is the minimum over the ranks of ``step << 16 | rank``, so the verdict names
    the first failure.
    """

    DRAIN = 10
    CREATE = 11
    EXPORT = 12
    EXCHANGE = 13
    IMPORT = 14
    MAP = 15
    ZERO = 16
    MULTICAST_CREATE = 20
    MULTICAST_EXCHANGE = 30
    MULTICAST_IMPORT = 31
    MULTICAST_JOIN = 32
    MULTICAST_BIND = 40
    MULTICAST_MAP = 41
    # The last two are what a failed bind or map counts as when the driver says that the
    # pool is empty, or that the fabric is not ready. A minimum of MULTICAST_NOT_READY
    # means that no rank failed for any other reason.
    MULTICAST_DRAINED = 48
    MULTICAST_NOT_READY = 49


_DOING = {
    Step.DRAIN: "waiting for the work on its device",
    Step.CREATE: "allocating",
    Step.EXPORT: "exporting its memory",
    Step.EXCHANGE: "exchanging memory handles",
    Step.IMPORT: "importing a peer's memory",
    Step.MAP: "mapping memory",
    Step.ZERO: "zeroing memory",
    Step.MULTICAST_CREATE: "creating the multicast object",
    Step.MULTICAST_EXCHANGE: "exchanging the multicast object",
    Step.MULTICAST_IMPORT: "importing the multicast object",
    Step.MULTICAST_JOIN: "joining the multicast object",
    Step.MULTICAST_BIND: "binding memory to the multicast object",
    Step.MULTICAST_MAP: "mapping the multicast object",
    Step.MULTICAST_DRAINED: "taking a multicast object from the rack's pool",
    Step.MULTICAST_NOT_READY: "waiting for the fabric manager",
}


class Member(NamedTuple):
    """A rank of a group: its process, a position in the exchange, and device there."""

    process: int
    device: int


class Ballot(Protocol):
    """Votes. Collective over every process of the mesh, each call under a deadline."""

    def vote(self, round_name: str, codes: Mapping[int, int]) -> dict[int, int]:
        """The minimum of every group, from this process's minimum for its own groups.

        Raises:
          SymmTimeoutError, SymmPeerLostError: Naming who is missing. No vote follows.
        """

    def post(self, key: str, text: str) -> None:
        """Publishes `text` before a vote that says there was a failure."""

    def read(self, key: str) -> str:
        """What was posted, or "" when its author died first."""


class Exchange(Protocol):
    """Bytes and descriptors between the processes of the mesh, under a deadline."""

    @property
    def process_index(self) -> int:
        """The position of this process."""

    @property
    def process_count(self) -> int:
        """The number of processes."""

    def allgather(self, tag: str, payload: bytes) -> list[bytes]:
        """The payload of every process. Collective."""

    def swap_fds(
        self, tag: str, fds: Mapping[int, Sequence[int]]
    ) -> dict[int, list[int]]:
        """Sends descriptors by destination process, returns those received by source.

        Collective. Those sent stay the caller's, those received become the caller's.
        """


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What stays the same through one rendezvous.

    Attributes:
      name: The same in every process and new for every rendezvous.
      groups: The members of each group, by rank.
      labels: What messages call each rank, shaped like `groups`.
      backend: The verbs of the memory.
    """

    name: str
    groups: Sequence[Sequence[Member]]
    labels: Sequence[Sequence[str]]
    backend: Any
    ballot: Ballot
    exchange: Exchange

    @property
    def mine(self) -> list[tuple[int, int, int]]:
        """(group, rank, device) of every member in this process."""
        me = self.exchange.process_index
        return [
            (group, rank, member.device)
            for group, members in enumerate(self.groups)
            for rank, member in enumerate(members)
            if member.process == me
        ]

    def devices(self, group: int) -> list[int]:
        """The devices of this process in `group`."""
        return [device for g, _, device in self.mine if g == group]

    def first_rank(self, group: int) -> int:
        """The least rank of this process in `group`."""
        return next(rank for g, rank, _ in self.mine if g == group)

    def processes(self, group: int) -> set[int]:
        """The processes that have a member in `group`."""
        return {member.process for member in self.groups[group]}


class Verdict(NamedTuple):
    """A group's first failure, the same in every process."""

    step: Step
    rank: int
    error: SymmError


class Round:
    """One round of one process: work that may fail, then the vote of all.

    A failure stops the rest of this process's work for that group, and nothing else.
    """

    def __init__(self, around: Surroundings, name: str):
        self._around = around
        self._name = f"{around.name}/{name}"
        self._failures: dict[int, tuple[int, str]] = {}

    def failed(self, group: int) -> bool:
        """Whether this process has failed for `group` in this round."""
        return group in self._failures

    def attempt(
        self, step: Step, group: int, rank: int, verb: Callable[..., Any], *args: Any
    ) -> Any:
        """`verb(*args)` for a member; None when its group fails here, or has."""
        if self.failed(group):
            return None
        try:
            return verb(*args)
        # A round is left by its vote alone, whatever a verb raises.
        except Exception as error:
            self.fail(_refine(step, error), group, rank, error)
            return None

    def fail(self, step: Step, group: int, rank: int, error: Exception) -> None:
        """Records what this process will vote for `group`; the first failure stays."""
        if self.failed(group):
            return
        label = self._around.labels[group][rank]
        text = f"{label} of group {group} failed while {_DOING[step]}: {error}"
        code = step << _RANK_BITS | rank
        self._failures[group] = code, f"{type(error).__name__}\n{text}"

    def vote(self) -> dict[int, Verdict]:
        """The groups that failed anywhere, and how. Empty when all is well."""
        ballot = self._around.ballot
        codes = {group: OK for group, _, _ in self._around.mine}
        for group, (code, text) in self._failures.items():
            codes[group] = code
            # Without its text a failure still counts.
            with contextlib.suppress(Exception):
                ballot.post(self._key(group, code), text)
        verdicts = ballot.vote(self._name, codes)
        return {g: self._explain(g, c) for g, c in verdicts.items() if c != OK}

    def _key(self, group: int, code: int) -> str:
        return f"{self._name}/{group}/{code}"

    def _explain(self, group: int, code: int) -> Verdict:
        step, rank = Step(code >> _RANK_BITS), code & (2**_RANK_BITS - 1)
        posted = self._around.ballot.read(self._key(group, code))
        if posted:
            class_name, text = posted.split("\n", 1)
            return Verdict(step, rank, from_name(class_name, text))
        label = self._around.labels[group][rank]
        text = (
            f"{label} of group {group} failed while {_DOING[step]} and left no reason"
        )
        return Verdict(step, rank, SymmPeerLostError(text))


# Status codes that decisions hang on.
_RESOURCE_EXHAUSTED = 8
_UNAVAILABLE = 14


def _refine(step: Step, error: Exception) -> Step:
    """What a failure counts as: the driver's answer to bind and map has meaning."""
    if step in (Step.MULTICAST_BIND, Step.MULTICAST_MAP):
        if getattr(error, "code", None) == _RESOURCE_EXHAUSTED:
            return Step.MULTICAST_DRAINED
        if getattr(error, "code", None) == _UNAVAILABLE:
            return Step.MULTICAST_NOT_READY
    return step


def first(verdicts: Mapping[int, Verdict]) -> Verdict:
    """The failure that all processes raise when several groups failed."""
    group = min(verdicts, key=lambda g: (verdicts[g].step, verdicts[g].rank, g))
    return verdicts[group]


Handles = dict[tuple[int, int], "int | bytes"]


def swap_handles(
    around: Surroundings,
    round_: Round,
    tag: str,
    step: Step,
    exports: Handles,
    wanted: Mapping[tuple[int, int], int],
    *,
    fabric: bool,
) -> Handles:
    """Gives away `exports` and collects `wanted` (key -> source process).

    The exports are consumed. A process with a failure of its own sends what it has, so
    nobody waits for it; who misses a handle fails at `step`, later than the cause. An
    exchange that breaks down fails every group of `wanted` and `exports`.
    """
    groups = {group for group, _ in (*wanted, *exports)}
    handles: Handles = {}
    try:
        swap = _swap_fabric if fabric else _swap_fds
        handles = swap(around, f"{around.name}/{tag}", exports)
    except Exception as broken:
        for group in groups:
            round_.fail(step, group, around.first_rank(group), broken)
    finally:
        close_all(exports.values())
    for (group, rank), process in wanted.items():
        if (group, rank) not in handles:
            error = SymmPeerLostError(
                f"process {process} sent no handle of rank {rank}"
            )
            round_.fail(step, group, around.first_rank(group), error)
    close_all(handles.pop(key) for key in list(handles) if key not in wanted)
    return handles


def _swap_fds(around: Surroundings, tag: str, exports: Handles) -> Handles:
    """Descriptors, with a list of which is which ahead of them."""
    exchange = around.exchange
    if exchange.process_count == 1:
        return {}
    names = sorted(exports)
    listed = exchange.allgather(f"{tag}/names", json.dumps(names).encode())
    outgoing: dict[int, list[int]] = {}
    for group, rank in names:
        for process in around.processes(group) - {exchange.process_index}:
            outgoing.setdefault(process, []).append(int(exports[group, rank]))
    received = exchange.swap_fds(f"{tag}/fds", outgoing)
    handles: Handles = {}
    for process, fds in received.items():
        expected = [
            (group, rank)
            for group, rank in json.loads(listed[process])
            if exchange.process_index in around.processes(group)
        ]
        if len(expected) != len(fds):
            close_all(fd for source in received.values() for fd in source)
            raise SymmPeerLostError(
                f"process {process} sent {len(fds)} descriptors instead of "
                f"{len(expected)}"
            )
        handles.update(zip(expected, fds, strict=True))
    return handles


def _swap_fabric(around: Surroundings, tag: str, exports: Handles) -> Handles:
    """Fabric handles are bytes: everyone sees all of them."""
    mine = [[group, rank, bytes(h).hex()] for (group, rank), h in exports.items()]
    handles: Handles = {}
    for payload in around.exchange.allgather(
        f"{tag}/fabric", json.dumps(mine).encode()
    ):
        for group, rank, text in json.loads(payload):
            handles[group, rank] = bytes.fromhex(text)
    return handles


def close_all(handles: Iterable[int | bytes]) -> None:
    """Closes those handles that are descriptors."""
    for handle in handles:
        if isinstance(handle, int):
            with contextlib.suppress(OSError):
                os.close(handle)
