"""Shadow state of a memory: per granule the last writer, and every reader since.

An access is packed into an int32, `agent << 8 | lane << 2 | multicast << 1 | asynchronous`; lane 63 means several lanes of the agent.
The first reader agent sits in arrays; further ones are in interned sets, so that a broadcast read of a tile costs one set.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .strong import Location

ASYNCHRONOUS, MULTICAST_PATH = 1, 2
SEVERAL = 63


class ReaderSets:
    """Interned sets of readers: packed identity -> (clock, lane mask, site)."""

    def __init__(self):
        self.sets: list[dict] = [{}]
        self._steps: dict[tuple, int] = {}

    def add(self, old: int, who: int, entry: tuple) -> int:
        """The set `old` and one more reading."""
        key = (old, who, entry)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = len(self.sets)
            when, lanes, site = entry
            earlier = self.sets[old].get(who)
            if earlier is not None:
                lanes |= earlier[1]
            self.sets.append({**self.sets[old], who: (when, lanes, site)})
        return found


class Shadow:
    """Arrays over the granules of one memory: 4 bytes each, or 1 after the first access that is not whole words."""

    FIELDS = ("writer", "written", "write_site", "reader", "read", "read_site", "more")

    def __init__(self, size: int):
        self.shift = 2
        granules = (size + 3) // 4
        for name in self.FIELDS:
            setattr(self, name, np.zeros(granules, np.int32))
        self.paths = 0
        self.sync: np.ndarray | None = None
        self.locations: dict[tuple[int, int], Location] = {}
        self.strong_sizes: set[int] = set()

    def table(self, which: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Identity, clock and site of the last writers, or of the first readers since."""
        if which == "writer":
            return self.writer, self.written, self.write_site
        return self.reader, self.read, self.read_site

    def refine(self) -> None:
        if self.shift == 0:
            return
        self.shift = 0
        for name in self.FIELDS:
            setattr(self, name, np.repeat(getattr(self, name), 4))
        if self.sync is not None:
            self.sync = np.repeat(self.sync, 4)

    def granules(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """[n, granules of one access] indices."""
        if self.shift == 2:
            if size % 4 == 0 and not (offsets & 3).any():
                return (offsets >> 2)[:, None] + np.arange(size // 4)
            self.refine()
        return offsets[:, None] + np.arange(size)

    def forget(self, granules: np.ndarray) -> None:
        for name in self.FIELDS:
            getattr(self, name)[granules] = 0

    def location(self, offset: int, size: int) -> Location:
        """The place of strong accesses of `size` bytes at `offset`."""
        found = self.locations.get((offset, size))
        if found is None:
            found = self.locations[offset, size] = Location()
            self.strong_sizes.add(size)
        return found

    def overlapping(self, low: int, high: int) -> Iterator[Location]:
        """Places of strong accesses that have bytes in [low, high)."""
        for size in self.strong_sizes:
            for start in range((low // size) * size, high, size):
                found = self.locations.get((start, size))
                if found is not None:
                    yield found

    def mark_sync(self, granules: np.ndarray) -> None:
        if self.sync is None:
            self.sync = np.zeros(self.writer.size, bool)
        self.sync[granules] = True
