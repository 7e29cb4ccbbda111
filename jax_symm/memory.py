"""Symmetric memory: the same buffer on every rank of a group, every peer's mapped.

The conversation of the ranks is in `_contract` and `_rendezvous`; this file joins it to
JAX's devices and hands out what it brings.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_symm import _backends, _native, config
from jax_symm._contract import Agreed, contract
from jax_symm._multicast import Outcome, rendezvous_multicast
from jax_symm._multicast_plan import (
    Agreement,
    MulticastPlan,
    Wish,
    agree,
    describe,
)
from jax_symm._rendezvous import GroupMemory, rendezvous_peers
from jax_symm._rounds import Member, Surroundings
from jax_symm.agreement import Ballot, concrete_mesh, open_conversation
from jax_symm.errors import SymmError, SymmStateError, SymmTypeError, SymmValueError
from jax_symm.exchange import Exchange
from jax_symm.group import AxisName, MeshGroups

#: Bytes of each rank's signal pad: zeroed at set-up, for flags of kernels.
SIGNAL_PAD_BYTES = 16384

_ALIGNMENT_BYTES = 256
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
    _release_abandoned()
    exchange, ballot = open_conversation(groups, purpose)
    unconnected = exchange.connect()
    failure = failure or unconnected
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
# finaliser frees nothing; the next set-up does.
_abandoned: list[tuple[str, GroupMemory | Outcome]] = []
_abandoned_lock = threading.Lock()


def abandon(platform: str, held: Sequence[GroupMemory | Outcome]) -> None:
    """Leaves what a dropped owner held to the next set-up, in this order."""
    with _abandoned_lock:
        _abandoned.extend((platform, item) for item in held)


def _abandon_buffer(
    platform: str, multicast: dict[int, Outcome], memory: dict[int, GroupMemory]
) -> None:
    abandon(platform, [*multicast.values(), *memory.values()])


def _release_abandoned() -> None:
    """Lets go of what was abandoned, when no program can be using it any longer."""
    with _abandoned_lock:
        left, _abandoned[:] = list(_abandoned), []
    for platform in {platform for platform, _ in left}:
        for device in jax.local_devices(backend=platform):
            _backends.backend(platform).synchronize(ordinal(device))
    for _, held in left:
        held.release()


@dataclasses.dataclass(eq=False)
class SymmetricBuffer:
    """A buffer of one shape on every rank of every group along a mesh axis.

    Made by `empty`. `peer_rendezvous` and `multicast_rendezvous` give access to it.

    Attributes:
      shape: Of each rank's part.
      dtype: Of its elements.
      nbytes: Of each rank's part, without the signal pad.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _mesh: Any
    _groups: MeshGroups
    _memory: dict[int, GroupMemory]
    _multicast: dict[int, Outcome] = dataclasses.field(default_factory=dict)
    _finalizer: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._finalizer = weakref.finalize(
            self,
            _abandon_buffer,
            self._groups.platform,
            self._multicast,
            self._memory,
        )
        self._finalizer.atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of each rank's part, without the signal pad."""
        return math.prod(self.shape) * self.dtype.itemsize

    def close(self) -> None:
        """Lets the memory go. Call it when no program of any rank uses it.

        It is unmapped when the last array made by `array` is gone, too. Idempotent.

        Collective: no.
        """
        if self._finalizer.detach() is not None:
            for outcome in self._multicast.values():
                outcome.release()
            for held in self._memory.values():
                held.release()

    def __enter__(self) -> SymmetricBuffer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Access(NamedTuple):
    """What one rank has of a buffer.

    Attributes:
      rank: The rank in its group.
      buffer_ptrs: Address of every rank's part, by rank, valid in this process.
      multicast_ptr: Address that reaches all parts at once, or None.
    """

    rank: int
    buffer_ptrs: tuple[int, ...]
    multicast_ptr: int | None


class SymmetricMemory:
    """Access to a symmetric buffer, as `peer_rendezvous` gives it.

    Attributes:
      world_size: Ranks per group.
    """

    def __init__(self, buffer: SymmetricBuffer):
        self._buffer = buffer
        self.world_size = buffer._groups.world_size

    @property
    def why_no_multicast(self) -> str | None:
        """Why `multicast_ptr` is None; None when every rank here has multicast."""
        outcomes = self._buffer._multicast
        if not outcomes:
            return "multicast_rendezvous was not called"
        reasons = (outcomes[group].reason for group in sorted(self._buffer._memory))
        return next((reason for reason in reasons if reason), None)

    def at(self, device: Any) -> Access:
        """What the rank on `device`, of this process, has of the buffer.

        Raises:
          SymmValueError: The device is not in the mesh, or another process's.
          SymmStateError: The buffer is closed.
        """
        place = self._buffer._groups.find(device)
        mappings = self._mappings(device)
        pointers = tuple(int(m.address) for m in mappings)
        outcome = self._buffer._multicast.get(place.group)
        shared = outcome.range if outcome else None
        return Access(place.rank, pointers, shared.address if shared else None)

    def array(self, device: Any) -> jax.Array:
        """A view, without a copy, of the part of the rank on `device`.

        Peers may change what it shows while JAX takes arrays to be constant: read it
        after synchronising, and never donate it. It keeps the memory mapped.

        Raises:
          SymmValueError: The device is not in the mesh, or another process's.
          SymmStateError: The buffer is closed.
        """
        rank = self._buffer._groups.find(device).rank
        view = _native.module().array_view(
            self._mappings(device)[rank],
            0,
            list(self._buffer.shape),
            self._buffer.dtype.name,
            "cpu" if device.platform == "cpu" else "cuda",
            ordinal(device),
        )
        array: jax.Array = jax.dlpack.from_dlpack(view, copy=False)
        return array

    def pointer_table(self) -> jax.Array:
        """The addresses of all parts, as operands for a kernel.

        Returns:
          uint32 `[*mesh.shape, R, 2]`, one entry of the mesh per device: low and high
          half of each rank's address, valid in the process of that device.
        """
        return self._table(0)

    def signal_pad_table(self) -> jax.Array:
        """As `pointer_table`, for the signal pads, `SIGNAL_PAD_BYTES` bytes each."""
        return self._table(_pad_offset(self._buffer.nbytes))

    def _mappings(self, device: Any) -> list[Any]:
        place = self._buffer._groups.find(device)
        if device.process_index != jax.process_index():
            raise SymmValueError(
                f"device: {device} belongs to process {device.process_index}, this is "
                f"process {jax.process_index()}; addresses are valid in one process"
            )
        held = self._buffer._memory[place.group].mappings
        if not held:
            raise SymmStateError("the symmetric buffer is closed")
        return [held[rank] for rank in range(self.world_size)]

    def _table(self, offset: int) -> jax.Array:
        mesh = self._buffer._mesh
        sharding = NamedSharding(mesh, P(*mesh.axis_names))
        shards = []
        for _, device in self._buffer._groups.local(jax.process_index()):
            addresses = [int(m.address) + offset for m in self._mappings(device)]
            halves = np.array([(a & 0xFFFFFFFF, a >> 32) for a in addresses], np.uint32)
            entry = halves.reshape((1,) * mesh.devices.ndim + halves.shape)
            shards.append(jax.device_put(entry, device))
        shape = (*mesh.devices.shape, self.world_size, 2)
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def empty(
    shape: Sequence[int], dtype: Any, *, mesh: Any = None, axis_name: AxisName
) -> SymmetricBuffer:
    """Makes a symmetric buffer: memory of one shape on every rank, contents undefined.

    Args:
      shape: Of each rank's part.
      dtype: Of its elements.
      mesh: The mesh; None for that of `jax.set_mesh`.
      axis_name: Axis of the mesh, or tuple of axes, along which the groups lie.

    Returns:
      The buffer, with a zeroed signal pad of `SIGNAL_PAD_BYTES` bytes per rank.

    Raises:
      SymmError: The same on every process, which then has nothing of it: the processes
        differ, memory ran out, or a process did not arrive before the deadline,
        `JAX_SYMM_INIT_TIMEOUT_S`.

    Collective: yes, over every process of the mesh, outside jit.
    """
    mesh = concrete_mesh(mesh)
    groups = MeshGroups.of(mesh, axis_name)
    failure: SymmError | None = None
    extents, element = tuple(shape), np.dtype(dtype)
    if any(not isinstance(d, int) or d < 0 for d in extents):
        failure = SymmValueError(f"empty: shape: got {extents}, expected integers >= 0")
    elif element.hasobject:
        failure = SymmTypeError(f"empty: dtype: got {element}, expected numbers")
    alike = {"call": "empty", "shape": [str(d) for d in extents], "dtype": element.name}
    talk = converse(groups, "empty", alike, failure=failure)
    pad_offset = _pad_offset(math.prod(extents) * element.itemsize)
    made = allocate(
        talk, pad_offset + SIGNAL_PAD_BYTES, [(pad_offset, SIGNAL_PAD_BYTES)]
    )
    return SymmetricBuffer(extents, element, mesh, groups, made.memory)


def peer_rendezvous(buf: SymmetricBuffer) -> SymmetricMemory:
    """Meets the peers over a buffer and gives access to all its parts.

    What a rank's host wrote before it came here is there for all ranks afterwards.

    Raises:
      SymmTimeoutError: A process did not come before the deadline.
      SymmPeerLostError: A process is gone.

    Collective: yes, over every process of the mesh, outside jit.
    """
    _meet(buf, "peer_rendezvous")
    return SymmetricMemory(buf)


def multicast_rendezvous(buf: SymmetricBuffer, what: str) -> SymmetricMemory:
    """As `peer_rendezvous`, and asks for a multicast address.

    Multicast is had by all ranks of a group or by none; without it the peers' addresses
    work all the same, and `why_no_multicast` says why.

    Args:
      buf: The buffer.
      what: What it is for, as messages name it.

    Raises:
      SymmError: As `peer_rendezvous`.

    Collective: yes, over every process of the mesh, outside jit.
    """
    talk = _meet(buf, f"multicast_rendezvous of {what}")
    sizes = {a.nbytes for m in buf._memory.values() for a in m.allocations.values()}
    around, agreed = _agree(talk, _wish("auto", sizes.pop(), allocated=True))
    had = {group for group, outcome in buf._multicast.items() if not outcome.reason}
    plans = [
        MulticastPlan(reason="has it already") if group in had else plan
        for group, plan in enumerate(agreed.multicast)
    ]
    outcomes = _add_multicast(talk, around, buf._memory, agreed, plans, "auto")
    buf._multicast.update((g, o) for g, o in outcomes.items() if g not in had)
    return SymmetricMemory(buf)


def _meet(buf: SymmetricBuffer, purpose: str) -> Conversation:
    failure: SymmError | None = None
    if not isinstance(buf, SymmetricBuffer):
        raise SymmTypeError(
            f"{purpose}: got {type(buf).__name__}, expected what empty made"
        )
    if not buf._finalizer.alive:
        failure = SymmStateError(f"{purpose}: the buffer is closed")
    alike = {"call": purpose, "shape": [str(d) for d in buf.shape]}
    return converse(buf._groups, purpose, alike, failure=failure)


def _pad_offset(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
