"""Tensor memory: accumulator layouts of tcgen05.mma and register images of tcgen05.ld.

PTX ISA, data path layouts A, B, D and F and the matrix fragments of tcgen05.ld. They
cannot be measured without an sm_100 device; third-party kernels anchor A, D and 32x32b.
"""

from __future__ import annotations

import numpy as np

LANES = 128
LANES_PER_WARP = 32


def accumulator_layout(
    m: int, n: int, cta_group: int, first_lane: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CTA of the pair, lane and column of every element of an f32 D: i64[m, n] each.

    `first_lane` is the lane of the address of D: 0, or 16 for M = 64, which fills every
    other half of a warp's quarter.
    """
    if first_lane not in ((0, 16) if m == 64 else (0,)):
        raise ValueError(f"lane of D: got {first_lane}, expected 0 (or 16 for M = 64)")
    row, column = np.arange(m)[:, None], np.arange(n)[None, :]
    cta = row * cta_group // m + column * 0
    local = row % (m // cta_group)
    if (m, cta_group) in ((128, 1), (256, 2)):
        return cta, local + column * 0, column + row * 0
    if (m, cta_group) == (64, 1):
        lane = local // 16 * LANES_PER_WARP + local % 16 + first_lane
        return cta, lane + column * 0, column + row * 0
    if (m, cta_group) == (128, 2):
        half = n // 2
        return cta, local + column // half * 64, column % half + row * 0
    raise ValueError(
        f"accumulator: got M = {m} of cta_group {cta_group}, expected 64 or 128 of 1, "
        "128 or 256 of 2"
    )


def operand_rows(m: int, n: int, cta_group: int) -> tuple[list[slice], list[slice]]:
    """Rows of A, and rows of B as n x k, that each CTA of the pair holds."""

    def split(rows: int) -> list[slice]:
        part = rows // cta_group
        return [slice(i * part, (i + 1) * part) for i in range(cta_group)]

    return split(m), split(n)


def load_registers(shape: str, repeat: int) -> int:
    """32-bit registers of one tcgen05.ld or tcgen05.st, in each thread."""
    per_repeat = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}
    if shape not in per_repeat:
        raise ValueError(f"tcgen05.ld shape: got {shape}, expected {set(per_repeat)}")
    registers = per_repeat[shape] * repeat
    if repeat not in (1, 2, 4, 8, 16, 32, 64, 128) or registers > 128:
        raise ValueError(f"tcgen05.ld.{shape}: got x{repeat}, which PTX does not have")
    return registers


def load_layout(shape: str, repeat: int, warp: int) -> tuple[np.ndarray, np.ndarray]:
    """Lane and column of each thread's registers: i64[32, registers] each.

    Lanes count from the first of the warp's quarter, which is included: warp w of a
    warpgroup reaches lanes 32 w to 32 w + 31. Columns are relative to the address.
    """
    register = np.arange(load_registers(shape, repeat))[None, :]
    thread = np.arange(LANES_PER_WARP)[:, None]
    if shape == "32x32b":
        lane, column = thread + register * 0, register + thread * 0
    elif shape == "16x64b":
        lane = thread // 4 + thread % 2 * 8 + register * 0
        column = thread // 2 % 2 + register * 2
    elif shape == "16x128b":
        lane = thread // 4 + register % 2 * 8
        column = thread % 4 + register // 2 * 4
    else:
        lane = thread // 4 + register // 2 % 2 * 8
        column = thread % 4 * 2 + register % 2 + register // 4 * 8
    return lane + warp % 4 * LANES_PER_WARP, column
