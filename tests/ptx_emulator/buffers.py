"""What the host holds: buffers of one rank, symmetric buffers of a group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .errors import EmulationError
from .memory import AddressSpace, Bytes

MAPPING_ALIGNMENT = 1 << 21


class Buffer:
    """Memory of one rank (or of the host) and the address it was allocated at.

    Every byte is poison until the host or a kernel writes it.
    """

    def __init__(self, memory: Bytes, address: int):
        self.memory = memory
        self.address = address
        self.nbytes = memory.size

    def write(self, data: np.ndarray, offset: int = 0) -> None:
        """Host write of an array's bytes at a byte offset."""
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
        self.memory.fill(raw, offset)

    def array(self, dtype, shape=None, *, allow_poison: bool = False) -> np.ndarray:
        """A copy of the contents, from the start.

        Args:
          dtype: element type.
          shape: all that fits when None.
          allow_poison: return rubbish for bytes never written.

        Raises:
          EmulationError: bytes of it were never written.
        """
        dtype = np.dtype(dtype)
        whole = self.nbytes // dtype.itemsize
        size = (whole if shape is None else int(np.prod(shape))) * dtype.itemsize
        bad = np.nonzero(self.memory.valid[:size] == 0)[0]
        if bad.size and not allow_poison:
            label = self.memory.label
            what = f"{bad.size} bytes of {label} were never written, first {bad[0]:#x}"
            raise EmulationError("poison", what)
        flat = self.memory.data[:size].copy().view(dtype)
        return flat if shape is None else flat.reshape(shape)

    @property
    def written(self) -> np.ndarray:
        """bool[nbytes]: which bytes hold a value."""
        return self.memory.valid[: self.nbytes].astype(bool)


class SymmetricBuffer:
    """The same allocation on every rank of a group, with peer and multicast windows.

    Each rank sees each peer's memory, and the multicast window, at addresses that are
    mapped for this rank only.
    """

    def __init__(
        self, space: AddressSpace, size: int, group: Sequence[int], label: str
    ):
        self.group = tuple(group)
        self.nbytes = size
        self._memories = {r: Bytes(size, f"{label} of rank {r}") for r in group}
        self._unicast: dict[tuple[int, int], int] = {}
        self._multicast: dict[int, int] = {}
        replicas = [self._memories[r] for r in self.group]
        for r in self.group:
            for peer in self.group:
                base = space.reserve(size, MAPPING_ALIGNMENT)
                space.map(r, base, size, [self._memories[peer]])
                self._unicast[r, peer] = base
            base = space.reserve(size, MAPPING_ALIGNMENT)
            space.map(r, base, size, replicas, multicast=True)
            self._multicast[r] = base

    def buffer(self, rank: int) -> Buffer:
        """The physical memory of one rank, at that rank's own address."""
        return Buffer(self._memories[rank], self._unicast[rank, rank])

    def address(self, rank: int, peer: int) -> int:
        """Where `rank` sees the memory of `peer`."""
        return self._unicast[rank, peer]

    def multicast_address(self, rank: int) -> int:
        """Where `rank` sees the multicast window: multimem instructions only."""
        return self._multicast[rank]
