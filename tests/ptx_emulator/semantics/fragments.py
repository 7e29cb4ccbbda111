"""Which element of a matrix each thread and register of a warp or warpgroup holds.

wgmma and stmatrix fragments are measured on an H200 (tests/gpu/hardware_tables).
"""

from __future__ import annotations

import numpy as np

WARPGROUP_THREADS = 128


def _check_n(n: int) -> None:
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma N: got {n}, expected a multiple of 8 from 8 to 256")


def wgmma_accumulator(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of D (64 x n, f32) in register r of thread t: i64[128, n // 2]."""
    _check_n(n)
    thread = np.arange(WARPGROUP_THREADS)[:, None]
    register = np.arange(n // 2)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8
    column = thread % 4 * 2 + register % 2 + register // 4 * 8
    return row, column


def wgmma_accumulator_f16(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for f16 D, two values a register, low half first: i64[128, n//4, 2]."""
    row, column = wgmma_accumulator(n)
    packed = (WARPGROUP_THREADS, n // 4, 2)
    return row.reshape(packed), column.reshape(packed)


def wgmma_a_registers() -> tuple[np.ndarray, np.ndarray]:
    """Row and column of a 64 x 16 A operand held in registers: i64[128, 4, 2]."""
    thread = np.arange(WARPGROUP_THREADS)[:, None, None]
    register = np.arange(4)[None, :, None]
    half = np.arange(2)[None, None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8 + half * 0
    column = thread % 4 * 2 + half + register // 2 * 8
    return row, column


def matrix_8x8() -> tuple[np.ndarray, np.ndarray]:
    """Row and column of an 8 x 8 matrix of 16-bit elements in one register: i64[32, 2].

    The fragment of ldmatrix and stmatrix; with `.trans` row and column change places.
    """
    lane = np.arange(32)[:, None]
    half = np.arange(2)[None, :]
    return lane // 4 + half * 0, lane % 4 * 2 + half
