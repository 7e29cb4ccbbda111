"""Runs a CUTLASS GEMM of small integers in the emulator and compares it bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptx_emulator.errors import Report
from ptx_emulator.machine import Machine, RunResult
from ptx_emulator.numeric import f32_to_bf16
from ptx_emulator.schedule import Schedule

from .cutlass import BuiltGemm, GemmAnchor, launch


@dataclass(frozen=True)
class GemmRun:
    """Wrong elements of D, the checker's reports, and the machine's figures."""

    wrong: int
    reports: tuple[Report, ...]
    result: RunResult


def unfenced_init_lines(ptx: str) -> set[int]:
    """Lines of mbarrier.init after the last fence.mbarrier_init.

    The 2-SM GEMM initialises its barrier of tensor-memory deallocation there, with only
    a relaxed barrier.cluster.arrive between that and the peer's arrival: a gap that PTX
    leaves open, and that the checker rightly reports.
    """
    lines = ptx.splitlines()
    fences = [i for i, text in enumerate(lines, 1) if "fence.mbarrier_init" in text]
    inits = [i for i, text in enumerate(lines, 1) if "mbarrier.init" in text]
    return {line for line in inits if line > max(fences, default=0)}


def run_gemm(
    anchor: GemmAnchor,
    built: BuiltGemm,
    sizes: tuple[int, int, int],
    seed: int,
    *,
    ptx: str | None = None,
    schedule: Schedule | None = None,
    resident_clusters: int = 2,
    check: bool = True,
) -> GemmRun:
    """One launch of the anchor, or of a mutant of it (`ptx`).

    CUTLASS reads registers of tcgen05.ld before tcgen05.wait::ld, which PTX leaves
    undefined, so third-party kernels run in the lenient mode. Races raise, except in
    2-SM kernels, whose known gap (`unfenced_init_lines`) is left out of the reports.
    """
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (m, k)).astype(np.float32)
    b = rng.integers(-4, 5, (n, k)).astype(np.float32)
    resident_ctas = resident_clusters * anchor.cluster[0] * anchor.cluster[1]
    machine = Machine(
        arch="sm_90a" if anchor.arch == 90 else "sm_100f",
        resident_ctas=resident_ctas,
        strict=False,
        check=check,
    )
    stored_a, stored_b = (a.T, b.T) if anchor.mn_major else (a, b)
    buffers = [machine.buffer(0, f32_to_bf16(x)) for x in (stored_a, stored_b)]
    d = machine.buffer(0, m * n * 2, label="D")
    addresses = (buffers[0].address, buffers[1].address, d.address)
    at = launch(built, sizes, addresses, resident_ctas)
    machine.launch(
        0,
        machine.load(ptx or built.ptx).kernel(),
        at.grid,
        at.block,
        at.parameters,
        cluster=at.cluster,
        smem_bytes=at.shared_bytes,
    )
    on_race = "collect" if anchor.two_sm else "raise"
    result = machine.run(seed, schedule, on_race=on_race)
    wrong = int((d.array(np.uint16, (m, n)) != f32_to_bf16(a @ b.T)).sum())
    known = unfenced_init_lines(built.ptx) if anchor.two_sm else set()
    reports = tuple(r for r in result.reports if r.lines[0] not in known)
    return GemmRun(wrong, reports, result)
