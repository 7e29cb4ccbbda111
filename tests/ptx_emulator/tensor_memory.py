"""Tensor memory of one CTA: 128 lanes by 512 columns of 32 bits, and its column allocator."""

from __future__ import annotations

import numpy as np

from .errors import EmulationError

LANES, COLUMNS = 128, 512
STRIPE_LANES = 16  # granularity of the ordering checker's shadow


class TensorMemory:
    def __init__(self, owner: str):
        self.owner = owner
        self.permit = True
        self.largest = (
            COLUMNS  # what may still be allocated at once: never more than before
        )
        self.granted: dict[int, int] = {}  # warp -> first column, until it takes it
        self.requests: dict[int, object] = {}  # CTA rank -> warp, kept by the even CTA
        self.issuer: int | None = None  # CTA rank that issues for the pair
        self.allocations: dict[int, int] = {}
        self.data: np.ndarray | None = None
        self.valid: np.ndarray | None = None
        self.used = np.zeros(COLUMNS, bool)
        self.shadow = None

    def _materialise(self) -> None:
        if self.data is None:
            self.data = np.full((LANES, COLUMNS), 0x7FC0DEAD, np.uint32)
            self.valid = np.zeros((LANES, COLUMNS), bool)

    def fits(self, columns: int) -> int | None:
        """First aligned free column for an allocation, or None."""
        for start in range(0, COLUMNS - columns + 1, 32):
            if not self.used[start : start + columns].any():
                return start
        return None

    def allocate(self, start: int, columns: int) -> None:
        self._materialise()
        self.largest = columns
        self.allocations[start] = columns
        self.used[start : start + columns] = True
        self.valid[:, start : start + columns] = False

    def free(self, start: int, columns: int) -> None:
        if self.allocations.get(start) != columns:
            raise EmulationError(
                "tensor-memory",
                f"dealloc of {columns} columns at {start}, but the allocations of {self.owner} are {self.allocations}",
            )
        del self.allocations[start]
        self.used[start : start + columns] = False

    def check(self, columns: np.ndarray, lanes: np.ndarray) -> None:
        low, high = int(columns.min()), int(columns.max())
        if low < 0 or high >= COLUMNS or not self.used[low : high + 1].all():
            raise EmulationError(
                "tensor-memory",
                f"columns {low}..{high} of {self.owner} are not allocated ({self.allocations})",
            )
        if int(lanes.min()) < 0 or int(lanes.max()) >= LANES:
            raise EmulationError(
                "tensor-memory", f"lanes {lanes.min()}..{lanes.max()} do not exist"
            )

    def read(self, lanes: np.ndarray, columns: np.ndarray, strict: bool) -> np.ndarray:
        self.check(columns, lanes)
        if strict and not self.valid[lanes, columns].all():
            raise EmulationError(
                "poison",
                f"read of tensor memory never written: {self.owner}, columns {columns.min()}..",
            )
        return self.data[lanes, columns]

    def write(self, lanes: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        self.check(columns, lanes)
        self.data[lanes, columns] = values
        self.valid[lanes, columns] = True
