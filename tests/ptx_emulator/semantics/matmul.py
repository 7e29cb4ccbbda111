"""The arithmetic of one MMA step.

The order and the intermediate width of the hardware's sum are not specified; f32 here,
so tests of exact results use small integers.
"""

from __future__ import annotations

import numpy as np


def multiply_accumulate(
    a: np.ndarray, b: np.ndarray, d: np.ndarray | None, out: str
) -> np.ndarray:
    """Returns d + a @ b.T as f32[m, n], of a f32[m, k], b f32[n, k], d f32[m, n]."""
    product = a.astype(np.float32) @ b.astype(np.float32).T
    total = product if d is None else d + product
    if out == "f16":
        return total.astype(np.float16).astype(np.float32)
    if out != "f32":
        raise ValueError(f"accumulator type: got {out!r}, expected 'f32' or 'f16'")
    return total
