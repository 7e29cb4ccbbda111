"""Bytes with poison, the global address space of the ranks, and its unicast, multicast and host windows."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from .errors import EmulationError

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

# Generic addresses of the windows that are not global memory. Addresses of a process's own memory,
# which a captured launch holds, are neither there nor among the emulator's.
SHARED_WINDOW = 0x0F00_0000_0000
LOCAL_WINDOW = 0x0E00_0000_0000
PARAM_WINDOW = 0x0D00_0000_0000
WINDOW_BYTES = 1 << 28
CTA_SHIFT = 24
CTA_MASK = (1 << CTA_SHIFT) - 1
FIRST_ADDRESS = 0x1000_0000_0000  # above every virtual time that a run can reach
SHARED_START = 0x400  # the first KiB of shared memory is reserved by the system


class Bytes:
    """A memory of `size` bytes, each poisoned until it is written."""

    def __init__(self, size: int, label: str):
        padded = (size + 31) // 32 * 32
        self.size = size
        self.label = label
        self.data = np.full(padded, 0xA5, np.uint8)
        self.valid = np.zeros(padded, np.uint8)
        self.shadow = None
        self.watch = None
        self.shared = False
        self._views: dict[tuple[int, int], tuple] = {}

    def view(self, element: int, count: int):
        """Data as [n, count] elements, validity as [n, words] and the word that means all valid."""
        key = (element, count)
        found = self._views.get(key)
        if found is None:
            word = min(element * count, 8)
            data = self.data.view(UNSIGNED[element]).reshape(-1, count)
            valid = self.valid.view(UNSIGNED[word]).reshape(-1, element * count // word)
            found = data, valid, UNSIGNED[word](int.from_bytes(b"\1" * word, "little"))
            self._views[key] = found
        return found

    def read(
        self, offsets: np.ndarray, element: int, count: int, strict: bool
    ) -> np.ndarray:
        """[n, count] elements at naturally aligned byte offsets."""
        data, valid, full = self.view(element, count)
        index = offsets // (element * count)
        if strict:
            good = valid[index] == full
            if np.count_nonzero(good) != good.size:
                first = int(offsets[int(np.argmin(good.all(1)))])
                what = f"read of bytes never written: {self.label} + {first:#x}"
                raise EmulationError("poison", what)
        return data[index]

    def write(self, offsets: np.ndarray, values: np.ndarray) -> bool:
        """Writes [n, count] elements, the last of equal offsets wins; whether any changed."""
        count = values.shape[1]
        data, valid, full = self.view(values.dtype.itemsize, count)
        index = offsets // (values.dtype.itemsize * count)
        changed = np.count_nonzero(data[index] != values)
        changed = changed or np.count_nonzero(valid[index] != full)
        data[index] = values
        valid[index] = full
        return bool(changed)

    def holds(self, offsets: np.ndarray, values: np.ndarray) -> bool:
        """Whether every element just written is still there: no other lane wrote to it."""
        count = values.shape[1]
        data, _, _ = self.view(values.dtype.itemsize, count)
        index = offsets // (values.dtype.itemsize * count)
        return np.count_nonzero(data[index] != values) == 0

    def fill(self, raw: np.ndarray, offset: int = 0) -> None:
        """Host write: `raw` uint8."""
        if offset < 0 or offset + raw.size > self.size:
            raise ValueError(
                f"write of {raw.size} bytes at {offset} into {self.label} of {self.size} bytes"
            )
        self.data[offset : offset + raw.size] = raw
        self.valid[offset : offset + raw.size] = 1


@dataclass
class Window:
    """A range of one rank's virtual addresses: the replicas behind it, and how it may be used."""

    base: int
    size: int
    replicas: list[Bytes]
    multicast: bool

    @property
    def end(self) -> int:
        return self.base + self.size


class AddressSpace:
    """The virtual addresses of every rank; an address that another rank was given is not mapped here."""

    GAP = 1 << 12

    def __init__(self, ranks: int):
        self._windows: list[list[Window]] = [[] for _ in range(ranks)]
        self._bases: list[list[int]] = [[] for _ in range(ranks)]
        self._owner: dict[int, int] = {}
        self._next = FIRST_ADDRESS

    def reserve(self, size: int, align: int = 512) -> int:
        base = (self._next + align - 1) // align * align
        self._next = base + size + self.GAP
        return base

    def map(
        self,
        rank: int,
        base: int,
        size: int,
        replicas: list[Bytes],
        multicast: bool = False,
    ) -> Window:
        window = Window(base, size, replicas, multicast)
        at = bisect.bisect_left(self._bases[rank], base)
        self._bases[rank].insert(at, base)
        self._windows[rank].insert(at, window)
        self._owner[base] = rank
        return window

    def find(self, rank: int, address: int) -> Window:
        at = bisect.bisect_right(self._bases[rank], address) - 1
        if at >= 0:
            window = self._windows[rank][at]
            if address < window.end:
                return window
            near = f"{address - window.end} bytes past the end of {window.replicas[0].label}"
        else:
            near = "below every allocation"
        for other, windows in enumerate(self._windows):
            for window in windows:
                if other != rank and window.base <= address < window.end:
                    near = f"mapped for rank {other} only ({window.replicas[0].label})"
        raise EmulationError(
            "bounds",
            f"global address {address:#x} is not mapped on rank {rank}: {near}",
        )

    def contiguous(self, rank: int, address: int, size: int) -> tuple[Window, int]:
        """The window that holds [address, address + size) and the offset in it."""
        window = self.find(rank, address)
        if address + size > window.end:
            raise EmulationError(
                "bounds",
                f"{size} bytes at {address:#x} run past the end of {window.replicas[0].label} ({window.size} bytes)",
            )
        return window, address - window.base
