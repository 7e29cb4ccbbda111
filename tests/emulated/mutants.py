"""Judges the mutants of a kernel: every synchronisation, dropped or weakened in turn.

    PYTHONPATH=tests:tests/emulated python tests/emulated/mutants.py sm100_push_rs

prints each mutant that no run notices, then the account by family. The mutants of each
family come in a fixed random order, so that the account of those judged within
`--minutes` is one of a sample. `--record FILE` keeps the verdicts, and goes on from them.

`kernel_mutants.json` says which mutants are equivalent, and names what gives the same
order by lines of the PTX of nvcc 13.0. After a change of the kernels these lines have to
be found again; the script refuses to judge by those that do not hold what they should.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutant_runs import KERNELS, Attempt, Subject, Trouble
from observing import observing
from ptx_emulator.mutation import rules, score
from ptx_emulator.mutation.known import Known, known_mutants

RECORDS = Path(__file__).with_name("kernel_mutants.json")


@dataclass(frozen=True)
class Coverage:
    """What a run of the unchanged kernel executes, and how much of it."""

    lines: frozenset[int]
    instructions: int


@dataclass(frozen=True)
class Judge:
    """A kernel, its runs, and which instructions they reach."""

    subject: Subject
    attempts: tuple[Attempt, ...]
    ptx: str
    coverage: tuple[Coverage, ...]

    @classmethod
    def of(cls, kernel: str) -> Judge:
        """Runs the unchanged kernel, which nothing may be noticed of."""
        subject, attempts = KERNELS[kernel]
        ptx = subject.ptx()
        coverage = tuple(_cover(subject, ptx, a, i) for i, a in enumerate(attempts))
        return cls(subject, attempts, ptx, coverage)

    def runs_for(self, mutant: rules.Mutant) -> list[int]:
        """Runs that reach the instruction, as no other can differ; short ones first.

        A run of a fault ends early, and looks at little else.
        """
        reach = [i for i, c in enumerate(self.coverage) if mutant.line in c.lines]
        return sorted(
            reach,
            key=lambda i: (
                isinstance(self.attempts[i], Trouble),
                self.coverage[i].instructions,
            ),
        )

    def judge(self, mutant: rules.Mutant) -> score.Verdict:
        """Runs the mutant until something is noticed."""
        order = self.runs_for(mutant)

        def run(text: str, number: int) -> str | None:
            return self.attempts[order[number]].run(self.subject, text, order[number])

        return score.judge(mutant, run, len(order))


def _cover(subject: Subject, ptx: str, attempt: Attempt, seed: int) -> Coverage:
    executed: Counter[int] = Counter()
    with observing(lambda warp, lanes, i: executed.update((i.line,))):
        how = attempt.run(subject, ptx, seed)
    if how is not None:
        raise SystemExit(f"the unchanged kernel, {attempt}: {how}")
    return Coverage(frozenset(executed), executed.total())


def in_fair_order(mutants: Sequence[rules.Mutant]) -> list[rules.Mutant]:
    """The families in proportion, each in a fixed random order."""
    placed = []
    for family in rules.FAMILIES:
        members = [m for m in mutants if m.family == family]
        random.Random(family).shuffle(members)
        placed += [((i + 0.5) / len(members), m) for i, m in enumerate(members)]
    return [mutant for _, mutant in sorted(placed, key=lambda p: p[0])]


@dataclass(frozen=True)
class Record:
    """Verdicts of earlier runs, a line each."""

    path: Path | None

    def read(self) -> dict[str, str | None]:
        """How each mutant was noticed."""
        if self.path is None or not self.path.exists():
            return {}
        rows = map(json.loads, self.path.read_text().splitlines())
        return {row["name"]: row["how"] for row in rows}

    def add(self, verdict: score.Verdict, seconds: float) -> None:
        """Appends one."""
        if self.path is None:
            return
        row = {
            "name": verdict.mutant.name,
            "line": verdict.mutant.line,
            "how": verdict.how,
            "runs": verdict.schedules,
            "seconds": round(seconds, 2),
        }
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def verdicts(
    judge: Judge,
    mutants: Sequence[rules.Mutant],
    record: Record,
    unchanged: Collection[str],
    minutes: float,
) -> Iterator[score.Verdict]:
    """Earlier verdicts and new ones, until the time is over; `unchanged` are not run."""
    known, end = record.read(), time.monotonic() + 60 * minutes
    for mutant in mutants:
        if mutant.name in unchanged:
            yield score.Verdict(mutant, None, 0)
        elif mutant.name in known:
            yield score.Verdict(mutant, known[mutant.name], 0)
        elif time.monotonic() < end:
            start = time.process_time()
            verdict = judge.judge(mutant)
            record.add(verdict, time.process_time() - start)
            yield verdict


def table(judged: Sequence[score.Verdict], every: Sequence[rules.Mutant], known: Known):
    """Markdown: the account by family, and how many mutants there are."""
    tallies, sizes = score.tally(judged, known.equivalent), Counter()
    sizes.update(m.family for m in every)
    sizes["all"] = len(every)
    lines = [
        "| family | mutants | judged | noticed | equivalent | score |",
        "|---|---|---|---|---|---|",
    ]
    for family in (*rules.FAMILIES, "all"):
        if row := tallies.get(family):
            counts = f"{sizes[family]} | {row.total} | {row.noticed} | {row.equivalent}"
            lines.append(f"| {family} | {counts} | {row.score:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Prints survivors and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("--families", nargs="+", default=list(rules.FAMILIES))
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--record", type=Path)
    parser.add_argument(
        "--equivalents", action="store_true", help="run mutants on record as equivalent"
    )
    arguments = parser.parse_args()
    judge, judged = Judge.of(arguments.kernel), []
    known = known_mutants(arguments.kernel, RECORDS)
    mutants = rules.mutants(judge.ptx)
    score.check_equivalents(judge.ptx, known.equivalent)
    if unknown := known.equivalent.keys() - {m.name for m in mutants}:
        raise SystemExit(f"{RECORDS} names mutants that do not exist: {unknown}")
    every = [m for m in mutants if m.family in arguments.families]
    record = Record(arguments.record)
    unchanged = () if arguments.equivalents else known.equivalent
    for verdict in verdicts(
        judge, in_fair_order(every), record, unchanged, arguments.minutes
    ):
        judged.append(verdict)
        if verdict.how is None and verdict.mutant.name not in known.equivalent:
            mutant, reach = verdict.mutant, len(judge.runs_for(verdict.mutant))
            text = " ".join(mutant.original.split())
            print(
                f"{mutant.name}, line {mutant.line}, {reach} runs: {text}", flush=True
            )
    print(table(judged, every, known))


if __name__ == "__main__":
    main()
