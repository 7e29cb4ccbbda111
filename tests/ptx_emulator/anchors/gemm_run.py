"""Runs a CUTLASS GEMM of small integers in the emulator and compares it bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptx_emulator.machine import Machine, RunResult
from ptx_emulator.numeric import f32_to_bf16
from ptx_emulator.schedule import Schedule

from .cutlass import BuiltGemm, GemmAnchor, launch


@dataclass(frozen=True)
class GemmRun:
    """Elements of D that are wrong, and what the machine says about the run."""

    wrong: int
    result: RunResult


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
    undefined, so third-party kernels run in the lenient mode.
    """
    m, n, k = sizes
    rng = np.random.default_rng(seed)
    a = rng.integers(-4, 5, (m, k)).astype(np.float32)
    b = rng.integers(-4, 5, (n, k)).astype(np.float32)
    machine = Machine(
        arch="sm_90a" if anchor.arch == 90 else "sm_100f",
        resident_ctas=resident_clusters * anchor.cluster[0] * anchor.cluster[1],
        strict=False,
        check=check,
    )
    stored_a, stored_b = (a.T, b.T) if anchor.mn_major else (a, b)
    buffers = [machine.buffer(0, f32_to_bf16(x)) for x in (stored_a, stored_b)]
    d = machine.buffer(0, m * n * 2, label="D")
    at = launch(built, sizes, (buffers[0].address, buffers[1].address, d.address))
    machine.launch(
        0,
        machine.load(ptx or built.ptx).kernel(),
        at.grid,
        at.block,
        at.parameters,
        cluster=at.cluster,
        smem_bytes=at.shared_bytes,
    )
    result = machine.run(seed, schedule)
    wanted = f32_to_bf16(a @ b.T)
    return GemmRun(int((d.array(np.uint16, (m, n)) != wanted).sum()), result)
