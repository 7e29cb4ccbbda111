"""The arithmetic of one MMA step.

The order and the intermediate width of the hardware's sum are not specified; f32 here,
so tests of exact results use small integers.
"""

from __future__ import annotations

import numpy as np

BLOCK_ROWS = 64  # a larger product wakes the threads of BLAS, which costs more than it


def multiply_accumulate(
    a: np.ndarray, b: np.ndarray, d: np.ndarray | None, out: str
) -> np.ndarray:
    """Returns d + a @ b.T as f32[m, n], of a f32[m, k], b f32[n, k], d f32[m, n]."""
    columns = np.ascontiguousarray(b.T, np.float32)
    product = np.empty((len(a), len(b)), np.float32)
    for start in range(0, len(a), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        np.matmul(a[rows].astype(np.float32), columns, out=product[rows])
    total = product if d is None else d + product
    if out == "f16":
        return total.astype(np.float16).astype(np.float32)
    if out != "f32":
        raise ValueError(f"accumulator type: got {out!r}, expected 'f32' or 'f16'")
    return total
