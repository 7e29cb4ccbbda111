"""Judges every mutant of an anchor and prints the account.

python -m ptx_emulator.mutation "sm100 1-SM 128x128" [family ...]
"""

from __future__ import annotations

import sys
import time

from ptx_emulator.anchors import cutlass

from . import score
from .anchor_runner import SCHEDULES, runner
from .known import known_mutants
from .rules import FAMILIES, mutants


def main(name: str, families: list[str]) -> None:
    """Prints each survivor as it is found, then the table."""
    anchor = next(a for a in cutlass.ANCHORS if a.name == name)
    built = cutlass.build(anchor)
    run, known, verdicts = runner(anchor, built), known_mutants(anchor.name), []
    started = time.perf_counter()
    for mutant in mutants(built.ptx):
        if mutant.family not in families:
            continue
        verdicts.append(score.judge(mutant, run, SCHEDULES))
        if verdicts[-1].how is None:
            kind = "equivalent" if mutant.name in known.equivalent else "unexplained"
            text = " ".join(mutant.original.split())
            print(f"{kind}: {mutant.name}, line {mutant.line}: {text}", flush=True)
    print(score.table(score.tally(verdicts, known.equivalent)))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(FAMILIES))
