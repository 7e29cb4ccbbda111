"""What the emulator raises and reports: errors of the program under test, and the checker's race reports."""

from __future__ import annotations

from dataclasses import dataclass


class EmulationError(Exception):
    """The program did something that PTX leaves undefined, or used a form that the emulator does not know.

    Attributes:
      kind: short slug such as "poison", "bounds", "alignment", "mbarrier", "unsupported", "race", "no-progress".
      line: PTX line of the instruction, or None.
    """

    def __init__(self, kind: str, message: str, line: int | None = None):
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.line = line


@dataclass(frozen=True)
class Report:
    """One pair of accesses that no chain of synchronisation orders.

    Attributes:
      kind: "race", "proxy", "alias", "tcgen05", "scope", "warp" or "mbarrier".
      message: both accesses with PTX line, rank, CTA, warp and lane.
      lines: PTX lines of the two accesses, earlier one first.
    """

    kind: str
    message: str
    lines: tuple[int, int]
