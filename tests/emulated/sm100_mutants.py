"""Judges mutants of SM100 kernels: every synchronisation, dropped or weakened in turn.

    PYTHONPATH=tests:tests/emulated python tests/emulated/sm100_mutants.py [options]

prints each mutant that no run notices, then the account by family.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from comm_world import check_results
from kernel_layout import Collective, Reducer
from ptx_emulator import Schedule
from ptx_emulator.mutation import rules, score
from sm100_world import Sm100World, Variant

KERNELS = {
    "pair multicast all-reduce": Variant(
        256, 2, "kn", reducer=Reducer.MULTICAST, collective=Collective.ALL_REDUCE
    ),
    "single push reduce-scatter": Variant(128, 1, "nk", reducer=Reducer.PUSH),
}


@dataclass(frozen=True)
class Attempt:
    """One run of two ranks: sizes of consecutive calls, and how it interleaves."""

    calls: tuple[tuple[int, int, int], ...]  # rows, n, k
    schedule: Schedule


# A try_wait that suspends hides a missing wait, so most runs make it give up, and slow
# engines keep the awaited work undone. Every rank has one cluster, so that each ring goes
# round: operands in the first attempt, accumulators and claims in the second. Two calls
# on one workspace, the second over the first's rows, try what keeps launches apart.
ATTEMPTS = (
    Attempt(
        ((520, 8, 648), (260, 16, 72)), Schedule(async_rate=0.05, time_out_rate=0.9)
    ),
    Attempt(
        ((1400, 8, 8), (300, 8, 136)),
        Schedule(starved_warp="random", async_rate=0.2, time_out_rate=0.9),
    ),
    Attempt(
        ((130, 72, 72), (300, 72, 8)), Schedule(slow_rank="random", split_rate=0.3)
    ),
    Attempt(
        ((300, 136, 200), (129, 264, 72)),
        Schedule(async_rate=0.1, time_out_rate=0.5, starved_warp=1),
    ),
)


def runner(variant: Variant) -> score.Runner:
    """Runs a PTX text in place of the kernel's."""

    def run(text: str, number: int) -> str | None:
        attempt = ATTEMPTS[number]
        calls = [variant.call(2, *sizes) for sizes in attempt.calls]
        room = max(call.payload for call in calls) * 8
        world = Sm100World(
            variant.call(2, *attempt.calls[0], payload_bytes=room),
            resident_ctas=variant.cluster,
            seed=number,
        )
        world.use(variant, text)
        launched = [world.start_all(variant, call, clusters=1) for call in calls]
        world.run(number, attempt.schedule)
        if any(world.faults()):
            return f"fault: {world.faults()}"
        try:
            for launches in launched:
                check_results(launches)
        except AssertionError as error:
            return str(error)
        return None

    return run


def main() -> None:
    """Prints survivors and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=KERNELS, default=next(iter(KERNELS)))
    parser.add_argument("--sample", type=int, help="judge a fixed sample of this size")
    parser.add_argument("--families", nargs="+", default=list(rules.FAMILIES))
    arguments = parser.parse_args()
    variant = KERNELS[arguments.kernel]
    chosen = rules.mutants(variant.ptx())
    if arguments.sample:
        chosen = score.sample(chosen, arguments.sample)
    verdicts, started = [], time.perf_counter()
    for mutant in chosen:
        if mutant.family not in arguments.families:
            continue
        verdicts.append(score.judge(mutant, runner(variant), len(ATTEMPTS)))
        if verdicts[-1].how is None:
            text = " ".join(mutant.original.split())
            print(f"not noticed: {mutant.name}, line {mutant.line}: {text}", flush=True)
    print(score.table(score.tally(verdicts, {})))
    print(f"{len(verdicts)} mutants, {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
