"""Setting symmetric memory up: joins the conversation of the ranks to JAX's devices.

The rounds themselves are in `_contract`, `_rendezvous` and `_multicast`.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from jax_symm import _backends, _native, config
from jax_symm._contract import Agreed, contract
from jax_symm._multicast import rendezvous_multicast
from jax_symm._multicast_books import Outcome
from jax_symm._multicast_plan import (
    Agreement,
    MulticastPlan,
    Wish,
    agree,
    describe,
)
from jax_symm._rendezvous import GroupMemory, rendezvous_peers
from jax_symm._rounds import Member, Surroundings
from jax_symm.agreement import Ballot, open_conversation
from jax_symm.errors import SymmError, SymmUnavailableError
from jax_symm.exchange import Exchange, current_job
from jax_symm.group import MeshGroups

# Longest wait in each multicast call of the driver that may block.
_MULTICAST_DEADLINE_S = 120.0


class Conversation(NamedTuple):
    """A set-up under way.

    Attributes:
      exchange: Bytes and descriptors between its processes.
      ballot: Its votes.
      groups: The groups of its mesh.
      agreed: The outcome of the contract round.
    """

    exchange: Exchange
    ballot: Ballot
    groups: MeshGroups
    agreed: Agreed


def converse(
    groups: MeshGroups,
    purpose: str,
    alike: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    failure: Exception | None = None,
) -> Conversation:
    """Begins a set-up: connects the processes and runs the contract round.

    Args:
      groups: The groups of the mesh.
      purpose: What it is for, as messages name it.
      alike: What must be equal in all processes.
      own: What this process says of itself.
      failure: What already went wrong in this process.

    Raises:
      SymmError: The same on every process.

    Collective: yes, over every process of the mesh.
    """
    unreleased = release_abandoned()
    exchange, ballot = open_conversation(groups, purpose)
    unconnected = exchange.connect()
    failure = failure or config.problem() or unconnected or unreleased
    agreed = contract(exchange, ballot, groups, alike, own, failure)
    return Conversation(exchange, ballot, groups, agreed)


class Allocated(NamedTuple):
    """What a set-up brought.

    Attributes:
      memory: The memory of each group that has a rank in this process.
      multicast: What each group got of multicast.
    """

    memory: dict[int, GroupMemory]
    multicast: dict[int, Outcome]


def allocate(
    talk: Conversation,
    nbytes: int,
    zero_ranges: Sequence[tuple[int, int]],
    multicast: str = "never",
) -> Allocated:
    """Makes `nbytes` on every rank, maps every peer's, and multicast if it is wanted.

    Args:
      talk: The set-up, past its contract.
      nbytes: Bytes per rank, rounded up to the granularity of the devices.
      zero_ranges: (offset, nbytes) that are zero before any rank goes on.
      multicast: "never", "auto" or "require".

    Raises:
      SymmError: The same on every process; nothing is kept.

    Collective: yes, over every process of the mesh.
    """
    around, agreed = _agree(talk, _wish(multicast, nbytes))
    memory = rendezvous_peers(
        around,
        nbytes=agreed.nbytes,
        zero_ranges=zero_ranges,
        handle_type=_handle_type(agreed),
    )
    try:
        outcomes = _add_multicast(
            talk, around, memory, agreed, agreed.multicast, multicast
        )
    except BaseException:
        for held in memory.values():
            held.release()
        raise
    return Allocated(memory, outcomes)


def add_multicast(
    talk: Conversation,
    memory: Mapping[int, GroupMemory],
    had: Mapping[int, Outcome],
) -> dict[int, Outcome]:
    """Asks for multicast for memory that exists, where a group has none yet.

    Args:
      talk: A set-up of its own, past its contract.
      memory: As `allocate` returned it.
      had: What the groups have of multicast, from earlier set-ups.

    Returns:
      What each group has now.

    Raises:
      SymmError: The same on every process; what a group had stays.

    Collective: yes, over every process of the mesh.
    """
    sizes = {a.nbytes for m in memory.values() for a in m.allocations.values()}
    around, agreed = _agree(talk, _wish("auto", sizes.pop(), allocated=True))
    served = {group for group, outcome in had.items() if not outcome.reason}
    plans = [
        MulticastPlan(reason="has it already") if group in served else plan
        for group, plan in enumerate(agreed.multicast)
    ]
    outcomes = _add_multicast(talk, around, memory, agreed, plans, "auto")
    return {
        group: had[group] if group in served else o for group, o in outcomes.items()
    }


def _wish(multicast: str, nbytes: int, *, allocated: bool = False) -> Wish:
    capacity_bytes = config.settings().multicast_capacity_mib << 20
    return Wish(multicast, nbytes, capacity_bytes, allocated)


def _agree(talk: Conversation, wish: Wish) -> tuple[Surroundings, Agreement]:
    try:
        backend = _backends.backend(talk.groups.platform)
    # A process without a backend must still say so to the others.
    except Exception as error:
        backend = _backends.Missing(error)
    around = Surroundings(
        name=f"memory-{talk.agreed.nonce:x}",
        groups=_members(talk),
        labels=talk.groups.labels(),
        backend=backend,
        ballot=talk.ballot,
        exchange=talk.exchange,
    )
    hosts = talk.exchange.hosts() or ["this host"]
    payload = describe(around, wish, _backends.books(), hosts)
    payloads = talk.exchange.allgather("devices", payload)
    return around, agree(around, wish, payloads, hosts)


def _handle_type(agreed: Agreement) -> Any:
    return getattr(_native.module().HandleType, agreed.handle_type)


def _add_multicast(
    talk: Conversation,
    around: Surroundings,
    memory: Mapping[int, GroupMemory],
    agreed: Agreement,
    plans: Sequence[MulticastPlan],
    multicast: str,
) -> dict[int, Outcome]:
    return rendezvous_multicast(
        around,
        memory,
        plans,
        _backends.books(),
        handle_type=_handle_type(agreed),
        required=multicast == "require",
        deadline_s=min(_MULTICAST_DEADLINE_S, talk.exchange.deadline.left_s() / 2),
    )


def ordinal(device: Any) -> int:
    """What the memory backend calls a device; -1 for another process's."""
    number = device.local_hardware_id
    return -1 if number is None else int(number)


def _members(talk: Conversation) -> list[list[Member]]:
    position = {p: i for i, p in enumerate(talk.exchange.processes)}
    return [
        [Member(position[d.process_index], ordinal(d)) for d in row]
        for row in talk.groups.devices
    ]


# Memory whose owner was dropped without close(). A kernel may still use it, so a
# finaliser frees nothing; the next set-up does. Finalisers run wherever a collection
# does, also in the middle of what is below: so there is no lock, and each step is
# atomic.
_abandoned: collections.deque[tuple[str, GroupMemory | Outcome]] = collections.deque()


def abandon(platform: str, held: Sequence[GroupMemory | Outcome]) -> None:
    """Leaves what a dropped owner held to the next set-up, in this order."""
    for item in held:
        _abandoned.append((platform, item))


def release_abandoned() -> SymmError | None:
    """Lets go of what was abandoned, when no program can be using it any longer.

    Returns:
      Why nothing was: a device that fails. What was abandoned stays so.
    """
    left: list[tuple[str, GroupMemory | Outcome]] = []
    with contextlib.suppress(IndexError):
        while True:
            left.append(_abandoned.popleft())
    native = _native.module()
    platforms = {platform for platform, _ in left}
    if native.abandoned_count():
        platforms.add("gpu")
    try:
        for platform in platforms:
            for device in jax.local_devices(backend=platform):
                _backends.backend(platform).synchronize(ordinal(device))
    # It is for the contract round to raise: the other processes wait there.
    except Exception as error:
        _abandoned.extendleft(reversed(left))
        return SymmUnavailableError(
            f"process {jax.process_index()} cannot wait for its devices to free memory "
            f"that was dropped: {error}"
        )
    for _, held in left:
        held.release()
    native.release_abandoned()
    return None


def let_go(
    groups: MeshGroups,
    memory: Mapping[int, GroupMemory],
    multicast: Mapping[int, Outcome],
) -> None:
    """Frees memory once this process's devices are idle.

    Memory of GPUs stays, counted, when a process of the mesh is lost or a device fails:
    a kernel may be waiting for what will never come, and unmapping would wait for it.

    Collective: no.
    """
    backend = _backends.backend(groups.platform)
    if backend.name != "host":
        why = _why_keep(groups, backend)
        if why:
            ranges = [o.range for o in multicast.values() if o.range is not None]
            _backends.quarantine(why, memory.values(), ranges)
            return
    for outcome in multicast.values():
        outcome.release()
    for held in memory.values():
        held.release()


def _why_keep(groups: MeshGroups, backend: Any) -> str:
    job = current_job()
    lost = job.links.lost(groups.processes) if job else {}
    if lost:
        return f"memory shared with process {min(lost)}, which is lost"
    for _, device in groups.local(jax.process_index()):
        try:
            backend.synchronize(ordinal(device))
        # Closing must not raise for what a kernel did.
        except Exception as error:
            return f"memory of a device that fails: {error}"
    return ""
