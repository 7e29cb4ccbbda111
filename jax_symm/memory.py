"""Symmetric memory: the same buffer on every rank of a group, every peer's mapped.

`_setup` runs the conversation of the ranks; this file hands out what it brings.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jax_symm import _native
from jax_symm._multicast_books import Outcome
from jax_symm._rendezvous import MAX_BYTES, GroupMemory
from jax_symm._setup import (
    Conversation,
    abandon,
    add_multicast,
    allocate,
    converse,
    let_go,
    ordinal,
)
from jax_symm.agreement import concrete_mesh
from jax_symm.errors import SymmError, SymmStateError, SymmTypeError, SymmValueError
from jax_symm.group import AxisName, MeshGroups

#: Bytes of each rank's signal pad: zeroed at set-up, for flags of kernels.
SIGNAL_PAD_BYTES = 16384

_ALIGNMENT_BYTES = 256


def _abandon_buffer(
    platform: str, multicast: dict[int, Outcome], memory: dict[int, GroupMemory]
) -> None:
    abandon(platform, [*multicast.values(), *memory.values()])


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
        """Waits for this process's devices and lets the memory go. Idempotent.

        Call it when no program of any rank uses the multicast address any longer: the
        memory of this process's ranks leaves it. Otherwise memory lives until every
        process has closed and the last array made by `array` is gone; GPU memory that
        an array outlived is freed by the next set-up. With a lost process in the mesh,
        GPU memory is kept until this process ends.

        Collective: no.
        """
        if self._finalizer.detach() is not None:
            let_go(self._groups, self._memory, self._multicast)

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
    extents, element, failure = _checked(shape, dtype)
    alike = {"call": "empty", "shape": [str(d) for d in extents], "dtype": element.name}
    talk = converse(groups, "empty", alike, failure=failure)
    pad_offset = _pad_offset(math.prod(extents) * element.itemsize)
    made = allocate(
        talk, pad_offset + SIGNAL_PAD_BYTES, [(pad_offset, SIGNAL_PAD_BYTES)]
    )
    return SymmetricBuffer(extents, element, mesh, groups, made.memory)


def _checked(
    shape: Any, dtype: Any
) -> tuple[tuple[int, ...], np.dtype[Any], SymmError | None]:
    """Shape and dtype, and what is wrong with them: for the contract round to raise."""
    nothing: tuple[tuple[int, ...], np.dtype[Any]] = (), np.dtype(np.uint8)
    try:
        extents = tuple(shape)
    except TypeError:
        extents = (None,)
    if any(
        isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 0
        for d in extents
    ):
        text = f"empty: shape: got {shape!r}, expected integers >= 0"
        return *nothing, SymmValueError(text)
    extents = tuple(int(d) for d in extents)
    try:
        element: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        element = np.dtype(object)
    if element.hasobject:
        text = f"empty: dtype: got {dtype!r}, expected numbers"
        return *nothing, SymmTypeError(text)
    nbytes = math.prod(extents) * element.itemsize
    if nbytes > MAX_BYTES:
        text = (
            f"empty: shape {extents} of {element}: got {nbytes} bytes, expected at "
            f"most {MAX_BYTES}"
        )
        return *nothing, SymmValueError(text)
    return extents, element, None


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
    buf._multicast.update(add_multicast(talk, buf._memory, dict(buf._multicast)))
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
