"""CUTLASS GEMMs give the right D in the emulator, with no report of the checker.

Two kernels run in every test run. JAX_SYMM_TEST_FULL=1 adds the others, more seeds and
the adversarial schedules (compiling a kernel takes half a minute and 3 GB once).
"""

from __future__ import annotations

import os

import pytest

from ptx_emulator.anchors import cutlass
from ptx_emulator.anchors.cutlass import GemmAnchor
from ptx_emulator.anchors.gemm_run import run_gemm
from ptx_emulator.schedule import ADVERSARIAL

pytestmark = pytest.mark.requires("nvcc", "cutlass")
FULL = os.environ.get("JAX_SYMM_TEST_FULL") == "1"
ALWAYS = (cutlass.SM100_ONE_SM, cutlass.SM90_WGMMA)
SIZES = {
    cutlass.SM100_ONE_SM: [(256, 256, 256), (200, 328, 136)],
    cutlass.SM90_WGMMA: [(256, 256, 256), (200, 328, 136)],
    cutlass.SM100_TWO_SM: [(512, 256, 256), (500, 264, 200)],
    cutlass.SM100_MULTICAST: [(1024, 1024, 192), (904, 600, 136)],
    cutlass.SM100_MN_MAJOR: [(256, 256, 256), (200, 328, 136)],
    cutlass.SM100_M64: [(128, 256, 192), (200, 328, 136)],
    cutlass.SM100_PAIR_M128: [(256, 256, 192), (200, 328, 136)],
}


def runs() -> list:
    """Anchor, sizes, seed and schedule of each test."""
    seeds = range(5) if FULL else range(2)
    schedules = ADVERSARIAL if FULL else ("uniform", "early_time_outs")
    chosen = []
    for anchor, sizes in SIZES.items():
        if not FULL and anchor not in ALWAYS:
            continue
        chosen += [(anchor, size, seed, "uniform") for size in sizes for seed in seeds]
        chosen += [(anchor, sizes[-1], 7, s) for s in schedules if s != "uniform"]
    return [
        pytest.param(
            *run, id=f"{run[0].name}-{'x'.join(map(str, run[1]))}-{run[3]}{run[2]}"
        )
        for run in chosen
    ]


@pytest.mark.parametrize(("anchor", "sizes", "seed", "schedule"), runs())
def test_gemm_is_right(anchor: GemmAnchor, sizes, seed, schedule, record_property):
    run = run_gemm(
        anchor, cutlass.build(anchor), sizes, seed, schedule=ADVERSARIAL[schedule]
    )
    record_property("warp_instructions", run.result.instructions)
    record_property("seconds", round(run.result.seconds, 3))
    assert run.wrong == 0
    assert run.reports == ()
    matrix_operations = {"tcgen05.mma", "wgmma"} & set(run.result.counters)
    assert matrix_operations == {"wgmma" if anchor.arch == 90 else "tcgen05.mma"}
