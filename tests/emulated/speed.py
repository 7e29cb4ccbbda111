"""How long the emulator takes over one GEMM and all-reduce of four ranks.

    PYTHONPATH=tests:tests/emulated python tests/emulated/speed.py

256 x 256 x 256 on each rank, the full checker on, two CTAs or CTA pairs a rank. Prints
seconds of CPU time (the emulator has one thread), the least of three seeds.
"""

from __future__ import annotations

import time
from itertools import product

from codegen.gemm_variants import GemmVariant, Sm90Variant, Sm100Variant
from gemm_world import run
from kernel_layout import Collective, Reducer

KERNELS = (
    (Sm90Variant, (128, 256, 2)),
    (Sm90Variant, (128, 128, 1)),
    (Sm100Variant, (128, 128, 1)),
    (Sm100Variant, (128, 256, 2)),
)


def measure(variant: GemmVariant) -> tuple[float, int]:
    """Seconds, set-up and comparison included, and warp instructions."""
    seconds = []
    for seed in range(3):
        start = time.process_time()
        result = run(variant, seed=seed, clusters=2, ranks=4, rows=256, n=256, k=256)
        seconds.append(time.process_time() - start)
    return min(seconds), result.instructions


def main() -> None:
    """Prints a Markdown table."""
    print("| kernel | seconds | warp instructions |\n|---|---|---|")
    for (family, tile), reducer in product(KERNELS, Reducer):
        variant = family(tile, reducer=reducer, collective=Collective.ALL_REDUCE)
        seconds, instructions = measure(variant)
        print(f"| {variant.symbol} | {seconds:.2f} | {instructions:,} |", flush=True)


if __name__ == "__main__":
    main()
