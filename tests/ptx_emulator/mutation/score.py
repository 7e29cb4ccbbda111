"""Runs mutants, and keeps the account of what was noticed.

score = noticed / (all - equivalent). A mutant is equivalent only when something else
gives the same order or value, and that is named: PTX lines and what stands there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ptx_emulator.errors import EmulationError

from .rules import FAMILIES, Mutant

# Takes a PTX text and a schedule's number; returns how the run went wrong, or None.
Runner = Callable[[str, int], str | None]


@dataclass(frozen=True)
class Equivalent:
    """Why a mutant cannot change anything.

    Attributes:
      reason: what gives the order (or value) that the mutant took away.
      edges: PTX lines that give it, and a part of the statement on each.
    """

    reason: str
    edges: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant; `how` is None when no schedule noticed it."""

    mutant: Mutant
    how: str | None
    schedules: int


def judge(mutant: Mutant, runner: Runner, schedules: int) -> Verdict:
    """Runs the mutant under schedules 0, 1, ... until one notices it.

    Raises:
      RuntimeError: the emulator does not know the mutated form, so the rule that made
        it proves nothing.
    """
    for schedule in range(schedules):
        try:
            how = runner(mutant.text, schedule)
        except EmulationError as error:
            if error.kind == "unsupported":
                raise RuntimeError(f"{mutant.name}: {error}") from error
            how = str(error)
        if how is not None:
            return Verdict(mutant, how, schedule + 1)
    return Verdict(mutant, None, schedules)


def sample(mutants: Sequence[Mutant], size: int, seed: int = 0) -> list[Mutant]:
    """A fixed sample with every family in proportion, and at least one of each."""
    chosen: list[Mutant] = []
    for family in FAMILIES:
        members = [m for m in mutants if m.family == family]
        share = max(1, round(size * len(members) / len(mutants)))
        count = min(share, len(members))
        chosen += random.Random(f"{seed} {family}").sample(members, count)
    return chosen


def check_equivalents(ptx: str, known: Mapping[str, Equivalent]) -> None:
    """Every named edge is on its line, and every named mutant exists.

    Raises:
      ValueError: a line does not hold what the entry says.
    """
    lines = ptx.splitlines()
    for name, entry in known.items():
        if not entry.edges:
            raise ValueError(f"{name}: got no edge, expected at least one PTX line")
        for number, part in entry.edges:
            if part not in lines[number - 1]:
                raise ValueError(
                    f"{name}: line {number} is {lines[number - 1].strip()!r}, "
                    f"expected {part!r} in it"
                )


@dataclass(frozen=True)
class Tally:
    """Counts of one family."""

    noticed: int
    equivalent: int
    total: int

    @property
    def score(self) -> float:
        judged = self.total - self.equivalent
        return self.noticed / judged if judged else 1.0


def tally(
    verdicts: Iterable[Verdict], known: Mapping[str, Equivalent]
) -> dict[str, Tally]:
    """Counts by family, and over all under "all"."""
    rows: dict[str, list[Verdict]] = {"all": list(verdicts)}
    for verdict in rows["all"]:
        rows.setdefault(verdict.mutant.family, []).append(verdict)
    return {
        family: Tally(
            sum(v.how is not None for v in members),
            sum(v.how is None and v.mutant.name in known for v in members),
            len(members),
        )
        for family, members in rows.items()
    }


def table(tallies: Mapping[str, Tally]) -> str:
    """The tallies as a Markdown table, families in the order of the rules."""
    lines = ["| family | noticed | equivalent | all | score |", "|---|---|---|---|---|"]
    for family in (*FAMILIES, "all"):
        if row := tallies.get(family):
            counts = f"{row.noticed} | {row.equivalent} | {row.total}"
            lines.append(f"| {family} | {counts} | {row.score:.2f} |")
    return "\n".join(lines)
