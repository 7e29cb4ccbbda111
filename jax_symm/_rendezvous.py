"""The conversation of the ranks while symmetric memory is set up: the peers round.

The rounds for multicast are in _multicast.py. Both run the same for memory of the host
and of GPUs; which verbs there are is the backend's matter.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax_symm._rounds import (
    Handles,
    Round,
    Step,
    Surroundings,
    close_all,
    first,
    swap_handles,
)

#: More than any machine has, and few enough that no size made from it overflows.
MAX_BYTES = 2**46


@dataclasses.dataclass
class GroupMemory:
    """What this process holds of one group's buffer.

    Attributes:
      allocations: The memory of this process's ranks, by rank.
      mappings: The memory of every rank, at addresses of this process, by rank.
    """

    allocations: dict[int, Any] = dataclasses.field(default_factory=dict)
    mappings: dict[int, Any] = dataclasses.field(default_factory=dict)

    def release(self) -> None:
        """Drops everything, mappings first. Idempotent."""
        for held in (self.mappings, self.allocations):
            while held:
                held.popitem()[1].release()


def rendezvous_peers(
    around: Surroundings,
    *,
    nbytes: int,
    zero_ranges: Sequence[tuple[int, int]],
    handle_type: Any,
) -> dict[int, GroupMemory]:
    """Allocates `nbytes` for every rank and maps every peer. The peers round.

    Each allocation is mapped once in a process, with access for all its devices of the
    group, so addresses are the same numbers for all local ranks.

    Args:
      around: What stays the same through the rendezvous.
      nbytes: Per rank; a multiple of every member's granularity.
      zero_ranges: (offset, nbytes) to zero in each rank's memory before peers see it.
      handle_type: How handles travel, the same everywhere; NONE within one process.

    Returns:
      The memory of each group that has a member in this process.

    Raises:
      SymmError: The first failure of any rank, in every process. Nothing stays.
    """
    memory = {group: GroupMemory() for group, _, _ in around.mine}
    with _unwinding(memory.values()):
        round_ = Round(around, "peers")
        _create(around, round_, memory, nbytes, handle_type)
        handles = _swap_memory(around, round_, memory, handle_type)
        _map_all(around, round_, memory, handles, nbytes)
        _zero(around, round_, memory, zero_ranges)
        verdicts = round_.vote()
        if verdicts:
            raise first(verdicts).error
    return memory


@contextlib.contextmanager
def _unwinding(held: Any) -> Iterator[None]:
    """Releases all of `held` when the block raises."""
    try:
        yield
    except BaseException:
        for item in held:
            item.release()
        raise


def _create(
    around: Surroundings,
    round_: Round,
    memory: Mapping[int, GroupMemory],
    nbytes: int,
    handle_type: Any,
) -> None:
    backend = around.backend
    for group, rank, device in around.mine:
        round_.attempt(Step.DRAIN, group, rank, backend.synchronize, device)
        made = round_.attempt(
            Step.CREATE, group, rank, backend.create, device, nbytes, handle_type
        )
        if made is not None:
            memory[group].allocations[rank] = made


def _swap_memory(
    around: Surroundings,
    round_: Round,
    memory: Mapping[int, GroupMemory],
    handle_type: Any,
) -> Handles:
    """A handle for every rank of our groups that lives in another process."""
    exports: Handles = {}
    fabric = handle_type.name == "FABRIC"
    for group, rank, _ in around.mine:
        if len(around.processes(group)) > 1:
            handle = round_.attempt(
                Step.EXPORT, group, rank, _export, memory[group], rank, fabric
            )
            if handle is not None:
                exports[group, rank] = handle
    wanted = {
        (group, rank): member.process
        for group in memory
        for rank, member in enumerate(around.groups[group])
        if member.process != around.exchange.process_index
    }
    return swap_handles(
        around, round_, "peers", Step.EXCHANGE, exports, wanted, fabric=fabric
    )


def _export(held: GroupMemory, rank: int, fabric: bool) -> int | bytes:
    allocation = held.allocations[rank]
    handle: int | bytes = (
        allocation.export_fabric() if fabric else allocation.export_fd()
    )
    return handle


def _map_all(
    around: Surroundings,
    round_: Round,
    memory: Mapping[int, GroupMemory],
    handles: Handles,
    nbytes: int,
) -> None:
    """Maps every rank's memory, importing what is another process's."""
    for group, held in memory.items():
        devices = around.devices(group)
        mine = min(held.allocations, default=around.first_rank(group))
        for rank in range(len(around.groups[group])):
            local = held.allocations.get(rank)
            blamed = mine if local is None else rank
            source = local
            if local is None:
                handle = handles.get((group, rank))
                source = round_.attempt(
                    Step.IMPORT,
                    group,
                    mine,
                    _import,
                    around,
                    devices[0],
                    handle,
                    nbytes,
                )
            mapping = round_.attempt(
                Step.MAP, group, blamed, around.backend.map, source, devices
            )
            if mapping is not None:
                held.mappings[rank] = mapping
            if local is None and source is not None:
                source.release()  # The mapping keeps what it maps.
    close_all(handles.values())


def _import(around: Surroundings, device: int, handle: int | bytes, nbytes: int) -> Any:
    if isinstance(handle, int):
        return around.backend.import_fd(device, handle, nbytes)
    return around.backend.import_fabric(device, handle, nbytes)


def _zero(
    around: Surroundings,
    round_: Round,
    memory: Mapping[int, GroupMemory],
    zero_ranges: Sequence[tuple[int, int]],
) -> None:
    for group, rank, device in around.mine:
        mapping = memory[group].mappings.get(rank)
        for offset, nbytes in zero_ranges:
            round_.attempt(
                Step.ZERO,
                group,
                rank,
                around.backend.zero,
                device,
                mapping,
                offset,
                nbytes,
            )
