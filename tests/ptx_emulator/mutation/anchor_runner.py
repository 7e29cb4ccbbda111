"""Judges mutants of an anchor: the runs that a mutant has to survive."""

from __future__ import annotations

from dataclasses import dataclass

from ptx_emulator.anchors import cutlass
from ptx_emulator.anchors.cutlass import BuiltGemm, GemmAnchor
from ptx_emulator.anchors.gemm_run import run_gemm
from ptx_emulator.schedule import Schedule

from .score import Runner


@dataclass(frozen=True)
class Attempt:
    """One run: CTA tiles along m, cluster tiles along n, k, and how it interleaves."""

    tiles: tuple[int, int]
    k: int
    resident_clusters: int
    schedule: Schedule


# A try_wait that suspends hides a missing wait behind it, so most runs make it give up,
# and slow engines keep the awaited work undone. Enough k to wrap every pipeline, few
# resident clusters so that each does several tiles, and many short tiles for the
# pipelines of accumulators and of tile numbers.
IMPATIENT = Schedule(async_rate=0.05, time_out_rate=0.9)
STARVED = Schedule(starved_warp="random", async_rate=0.2, time_out_rate=0.9)
ATTEMPTS = (
    Attempt((2, 2), 832, 1, IMPATIENT),
    Attempt((2, 3), 192, 1, STARVED),
    Attempt((3, 3), 64, 1, IMPATIENT),
    Attempt((2, 2), 448, 1, Schedule(async_rate=0.1, late_write_rate=0.5)),
    Attempt((3, 3), 64, 2, STARVED),
    Attempt((1, 2), 192, 1, Schedule(async_rate=0.9, starved_warp=2)),  # the load warp
)
SCHEDULES = len(ATTEMPTS)


def runner(anchor: GemmAnchor, built: BuiltGemm) -> Runner:
    """Runs a PTX text in place of the anchor's."""

    def run(text: str, schedule: int) -> str | None:
        attempt = ATTEMPTS[schedule]
        cluster_m = anchor.tile_m * anchor.cluster[0] // (2 if anchor.two_sm else 1)
        cluster_n = anchor.tile_n * anchor.cluster[1]
        rows = max(1, attempt.tiles[0] // anchor.cluster[0])
        sizes = (rows * cluster_m, attempt.tiles[1] * cluster_n, attempt.k)
        done = run_gemm(
            anchor,
            built,
            sizes,
            schedule,
            ptx=text,
            schedule=attempt.schedule,
            resident_clusters=attempt.resident_clusters,
        )
        if done.reports:
            return f"race: {done.reports[0].message}"
        return f"{done.wrong} wrong values" if done.wrong else None

    return run


ANCHORS_IN_CI = (cutlass.SM100_ONE_SM, cutlass.SM90_WGMMA)
