"""What the workers of the hub run: the product's conversation over the fake driver."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Sequence
from multiprocessing.connection import Client
from typing import Any

from hub import Line

from jax_symm import _jax_symm as native
from jax_symm._multicast import rendezvous_multicast
from jax_symm._multicast_books import Books, Outcome
from jax_symm._multicast_plan import Wish, agree, describe
from jax_symm._rendezvous import GroupMemory, rendezvous_peers
from jax_symm._rounds import Member, Round, Surroundings
from jax_symm.errors import SymmError

MIB = 1 << 20
# Warnings are for tests that look at them.
logging.getLogger("jax_symm").addHandler(logging.NullHandler())


@functools.cache
def backend() -> Any:
    """The CUDA backend of this process, on the fake driver where one is named.

    On the real driver multicast calls abort, whatever the environment says: the GPUs may
    be others' too.
    """
    fake = os.environ.get("FAKE_CUDA_LIBRARY", "")
    return native.cuda_backend(fake, forbid_multicast=not fake)


@functools.cache
def books() -> Books:
    """The multicast books of this process."""
    return Books(
        budget=int(os.environ.get("FAKE_BUDGET", "4")),
        veto=os.environ.get("FAKE_VETO") or None,
        in_use=lambda: int(native.ledger()["multicast_objects"]),
    )


@dataclasses.dataclass
class Setup:
    """What one conversation is about; the same in every process.

    Attributes:
      groups: (process, device) of every member.
      multicast: "never", "auto" or "require".
    """

    name: str
    groups: Sequence[Sequence[tuple[int, int]]]
    multicast: str = "auto"
    nbytes: int = 3 * MIB
    capacity_bytes: int = 16 * MIB
    bind_deadline_s: float = 30.0
    backoff_s: tuple[float, ...] = (0.01, 0.01, 0.01)
    hosts: tuple[str, ...] = ()


@dataclasses.dataclass
class Buffer:
    """A buffer in the hands of this process."""

    around: Surroundings
    memory: dict[int, GroupMemory]
    outcomes: dict[int, Outcome]

    def release(self) -> None:
        """Multicast first, then the memory."""
        for outcome in self.outcomes.values():
            if outcome.range is not None:
                outcome.range.release()
        for held in self.memory.values():
            held.release()


def around(line: Line, setup: Setup) -> Surroundings:
    """The surroundings of a conversation."""
    groups = [[Member(*member) for member in group] for group in setup.groups]
    labels = [[f"rank {rank}" for rank in range(len(group))] for group in groups]
    return Surroundings(setup.name, groups, labels, backend(), line, line)


def converse(line: Line, setup: Setup) -> Buffer:
    """The whole conversation: contract, peers, multicast."""
    here = around(line, setup)
    wish = Wish(setup.multicast, setup.nbytes, setup.capacity_bytes)
    hosts = setup.hosts or ("one host",) * line.process_count
    payloads = line.allgather(
        f"{setup.name}/contract", describe(here, wish, books(), hosts)
    )
    agreed = agree(here, wish, payloads, hosts)
    handle_type = native.HandleType[agreed.handle_type]
    memory = rendezvous_peers(
        here, nbytes=agreed.nbytes, zero_ranges=[(0, 4096)], handle_type=handle_type
    )
    try:
        outcomes = rendezvous_multicast(
            here,
            memory,
            agreed.multicast,
            books(),
            handle_type=handle_type,
            required=setup.multicast == "require",
            deadline_s=setup.bind_deadline_s,
            backoff_s=setup.backoff_s,
        )
    except BaseException:
        for held in memory.values():
            held.release()
        raise
    return Buffer(here, memory, outcomes)


_kept: dict[str, Buffer] = {}


@dataclasses.dataclass
class Seen:
    """What a process saw of a conversation that succeeded."""

    multicast: dict[int, bool]
    reasons: dict[int, str]
    ledger: dict[str, int]


def check_bytes(line: Line, buffer: Buffer, tag: str) -> None:
    """Every rank writes into its own memory; everyone reads everyone's."""
    for group, rank, device in buffer.around.mine:
        mine = buffer.memory[group].mappings[rank]
        zeros = backend().copy_to_host(device, mine.address, 4096)
        assert zeros == bytes(4096)
        backend().copy_to_device(device, mine.address, _pattern(group, rank))
    line.allgather(f"{tag}/written", b"")
    for group, _, device in buffer.around.mine:
        for rank, mapping in sorted(buffer.memory[group].mappings.items()):
            seen = backend().copy_to_host(device, mapping.address, 16)
            assert seen == _pattern(group, rank), (group, rank, seen)
    line.allgather(f"{tag}/read", b"")


def _pattern(group: int, rank: int) -> bytes:
    return bytes([1 << rank, group + 1]) * 8


def open_and_close(line: Line, setup: Setup, bytes_too: bool = False) -> Seen:
    """A conversation, a look at the bytes, and everything let go."""
    buffer = converse(line, setup)
    try:
        if bytes_too:
            check_bytes(line, buffer, setup.name)
        return _seen(buffer)
    finally:
        buffer.release()


def _seen(buffer: Buffer) -> Seen:
    for group in buffer.memory:
        outcome = buffer.outcomes[group]
        assert (outcome.range is None) == bool(outcome.reason), outcome
    return Seen(
        {group: not o.reason for group, o in buffer.outcomes.items()},
        {group: o.reason for group, o in buffer.outcomes.items()},
        dict(native.ledger()),
    )


def open_kept(line: Line, setup: Setup) -> Seen:
    """A conversation whose buffer stays open under its name."""
    _kept[setup.name] = converse(line, setup)
    return _seen(_kept[setup.name])


def check_kept(line: Line, name: str) -> None:
    """Looks at the bytes of a kept buffer."""
    check_bytes(line, _kept[name], name)


def addresses(line: Line, name: str) -> dict[int, tuple[int, int]]:
    """By group, the multicast address of a kept buffer, and where it is in its object."""
    return {
        group: (outcome.range.address, outcome.range.offset)
        for group, outcome in _kept[name].outcomes.items()
        if outcome.range is not None
    }


def close_kept(line: Line, name: str) -> None:
    """Closes a kept buffer; local."""
    if name in _kept:
        _kept.pop(name).release()


def forget(line: Line) -> None:
    """Forgets refusals of multicast."""
    books().forget()


def ledger(line: Line) -> dict[str, int]:
    """What this process holds."""
    return dict(native.ledger())


def without_join_vote(line: Line) -> None:
    """The mutant: no vote between joining a multicast object and binding to it."""
    vote = Round.vote
    Round.vote = (  # type: ignore[method-assign]
        lambda self: {} if self._name.endswith("/join") else vote(self)
    )


def peek(line: Line, name: str, offset: int, nbytes: int) -> list[bytes]:
    """Bytes of every rank's part of group 0, as this process sees them."""
    buffer = _kept[name]
    _, _, device = buffer.around.mine[0]
    return [
        backend().copy_to_host(device, mapping.address + offset, nbytes)
        for _, mapping in sorted(buffer.memory[0].mappings.items())
    ]


def write_to_peers(line: Line, name: str) -> None:
    """Every process writes its index into its slot of every rank's part."""
    buffer = _kept[name]
    _, _, device = buffer.around.mine[0]
    for mapping in buffer.memory[0].mappings.values():
        address = mapping.address + 8192 + line.process_index
        backend().copy_to_device(device, address, bytes([line.process_index + 1]))


def free_bytes(line: Line) -> int:
    """What is free on the first GPU."""
    return int(backend().memory_info(0)[0])


def probe_fabric(line: Line) -> str:
    """Why fabric handles do not work here; "" when they do."""
    try:
        backend().probe_fabric(0)
    except SymmError as error:
        return str(error)
    return ""


def facts(line: Line) -> tuple[bool, bool, bool]:
    """Whether the GPU says that it has descriptors, fabric handles and multicast."""
    found = backend().facts(0)
    return found.posix_fd, found.fabric, found.multicast


def write(line: Line, name: str, data: bytes) -> None:
    """Writes into the parts of this process's ranks."""
    buffer = _kept[name]
    for group, rank, device in buffer.around.mine:
        address = buffer.memory[group].mappings[rank].address
        backend().copy_to_device(device, address, data)


class _Collect(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def warnings_of(line: Line, setups: Sequence[Setup]) -> list[str]:
    """What the product warns of while these are opened and closed."""
    collect = _Collect()
    logger = logging.getLogger("jax_symm")
    logger.addHandler(collect)
    try:
        for setup in setups:
            open_and_close(line, setup)
    finally:
        logger.removeHandler(collect)
    return collect.texts


def open_and_store(line: Line, setup: Setup) -> int | None:
    """Process 0 stores through multicast as soon as its own set-up has returned."""
    buffer = converse(line, setup)
    reached = None
    if line.process_index == 0:
        shared = buffer.outcomes[0].range
        assert shared is not None
        with Client(os.environ["FAKE_CUDA_SERVER"] + ".control", "AF_UNIX") as control:
            store = {"tag": "p0", "address": shared.address, "data": b"first"}
            control.send(("multimem_store", store))
            reached = control.recv()
    line.allgather(f"{setup.name}/stored", b"")
    buffer.release()
    return reached


def open_descriptors(line: Line) -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


def _resident_kib() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def cycle(line: Line, count: int) -> dict[str, Any]:
    """Allocates, maps, and frees, `count` times; says what has grown since the 100th."""
    begin = (0, 0)
    for number in range(count):
        if number == 100:
            begin = (_resident_kib(), open_descriptors(line))
        memory = backend().create(0, 2 * MIB, native.HandleType.POSIX_FD)
        mapping = backend().map(memory, [0])
        mapping.release()
        memory.release()
    return {
        "resident_kib": _resident_kib() - begin[0],
        "descriptors": open_descriptors(line) - begin[1],
        "ledger": dict(native.ledger()),
    }
