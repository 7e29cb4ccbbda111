"""Judges mutants of the communication half: takes one act of synchronisation away.

    python tests/emulated/comm_mutants.py push_ar [family ...]      (from the root)

prints every survivor as it is found, then the account.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from comm_world import World, check_results, launch_simt, simt_ptx
from kernel_layout import Call, Collective, Reducer
from ptx_emulator import Schedule
from ptx_emulator.mutation import rules, score

TIMEOUT_NS = 2_000_000


@dataclass(frozen=True)
class Attempt:
    """Calls in a row on one workspace, of changing height, and how they interleave."""

    ranks: int
    rows: tuple[int, ...]
    grid: int
    schedule: Schedule
    resident_ctas: int = 2


ATTEMPTS = (
    Attempt(2, (34, 66, 2), 2, Schedule(slow_rank=0)),
    Attempt(2, (66, 34, 66), 2, Schedule(starved_warp="random", split_rate=0.5)),
    Attempt(3, (70, 5), 1, Schedule(start_round={1: 400})),
    Attempt(2, (130, 2, 66), 3, Schedule(slow_rank=1), resident_ctas=3),
)
SCHEDULES = len(ATTEMPTS) + 2


def _call(kernel: str, ranks: int, rows: int) -> Call:
    reducer, mode = kernel.split("_")
    collective = Collective.REDUCE_SCATTER if mode == "rs" else Collective.ALL_REDUCE
    return Call(
        ranks=ranks,
        rows=rows,
        n=24,
        reducer=Reducer[reducer.upper()],
        collective=collective,
    )


def _sums(kernel: str, ptx: str, attempt: Attempt, seed: int) -> str | None:
    largest = _call(kernel, attempt.ranks, max(attempt.rows))
    world = World(largest, resident_ctas=attempt.resident_ctas, seed=seed)
    calls = [
        launch_simt(
            world, _call(kernel, attempt.ranks, rows), ptx=ptx, grid=attempt.grid
        )
        for rows in attempt.rows
    ]
    world.run(seed, attempt.schedule)
    try:
        for launches in calls:
            check_results(launches)
    except AssertionError as error:
        return str(error)
    return None if world.faults() == [None] * attempt.ranks else "a fault"


def _fault(kernel: str, ptx: str, other_call: bool) -> str | None:
    """A rank that is missing, or makes another call, must come out as such."""
    call = _call(kernel, 3, 40)
    world = World(call)
    options = {"ptx": ptx, "timeout_ns": TIMEOUT_NS, "grid": 1}
    launches = launch_simt(world, call, ranks=(0, 2), call_hash=1, **options)
    launches += launch_simt(
        world, call, ranks=(1,), call_hash=1 + other_call, **options
    )
    absent = () if other_call else (1,)
    world.run(1, Schedule(absent_ranks=absent))
    world.run(1)
    verdicts = {fault and fault.verdict for fault in world.faults()}
    if len(verdicts) != 1 or None in verdicts:
        return f"verdicts {verdicts}"
    if not other_call and verdicts.pop().blamed != 1:
        return "another rank is blamed"
    return None if all(x.is_poisoned() for x in launches) or other_call else "not NaN"


def runner(kernel: str) -> score.Runner:
    """Runs a PTX text in place of the kernel's."""

    def run(text: str, schedule: int) -> str | None:
        if schedule < len(ATTEMPTS):
            return _sums(kernel, text, ATTEMPTS[schedule], schedule)
        return _fault(kernel, text, other_call=schedule > len(ATTEMPTS))

    return run


def main(kernel: str, families: list[str]) -> None:
    """Judges every mutant of the families, or all, of a kernel."""
    ptx, run, verdicts = simt_ptx(kernel), runner(kernel), []
    for schedule in range(SCHEDULES):
        if how := run(ptx, schedule):
            raise SystemExit(f"schedule {schedule}, unchanged: {how}")
    for mutant in rules.mutants(ptx):
        if mutant.family not in families:
            continue
        verdicts.append(score.judge(mutant, run, SCHEDULES))
        if verdicts[-1].how is None:
            text = " ".join(mutant.original.split())
            print(f"{mutant.name}, line {mutant.line}: {text}", flush=True)
    print(score.table(score.tally(verdicts, {})))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(rules.FAMILIES))
