"""The phase rule of an mbarrier: pending arrivals and transaction bytes.

A phase completes in the step that leaves no pending arrival and a transaction count of
zero; the count may go below zero on the way (measured: tests/gpu/hardware_tables).
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_COUNT = 2**20 - 1


@dataclass
class BarrierPhase:
    """State of one mbarrier, from `mbarrier.init` with `expected` arrivals a phase."""

    expected: int
    pending: int = -1
    transactions: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.expected <= MAX_COUNT:
            raise ValueError(
                f"mbarrier count: got {self.expected}, expected 1 to {MAX_COUNT}"
            )
        self.pending = self.expected

    def arrive(self, count: int = 1, expect: int = 0, drop: bool = False) -> bool:
        """True when this completed the phase; `expect` bytes are added first."""
        if not 1 <= count <= self.pending:
            raise ValueError(
                f"mbarrier arrival: got {count}, expected 1 to {self.pending} pending"
            )
        self._add(expect)
        self.pending -= count
        if drop:
            self.expected -= count
        return self._complete()

    def expect(self, byte_count: int) -> bool:
        self._add(byte_count)
        return self._complete()

    def complete(self, byte_count: int) -> bool:
        self._add(-byte_count)
        return self._complete()

    def test_parity(self, parity: int) -> bool:
        """True when the phase of this parity has completed."""
        return self.phase & 1 != parity

    def _add(self, byte_count: int) -> None:
        self.transactions += byte_count
        if abs(self.transactions) > MAX_COUNT:
            raise ValueError(
                f"mbarrier transaction count: got {self.transactions}, expected at "
                f"most {MAX_COUNT} either way"
            )

    def _complete(self) -> bool:
        if self.pending or self.transactions:
            return False
        self.phase += 1
        self.pending = self.expected
        return True
