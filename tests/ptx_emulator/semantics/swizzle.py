"""The XOR patterns that TMA and the matrix units apply to shared-memory addresses.

A pattern of span S exchanges the 16-byte chunks inside each S-byte line by the line's
index: address bits 4.. are XORed with the bits from 7 on. It works on absolute shared
addresses, so it repeats every 8 * S bytes whatever the start of the tile.
Measured on an H200: tests/gpu/hardware_tables.
"""

from __future__ import annotations

import numpy as np

CHUNK_BYTES = 16
SPAN_BYTES = {"32B": 32, "64B": 64, "128B": 128}
UNMEASURED = ("128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")
SWIZZLES = ("none", *SPAN_BYTES, *UNMEASURED)


def check_mode(mode: str) -> None:
    if mode not in SWIZZLES:
        raise ValueError(f"swizzle mode: got {mode!r}, expected one of {SWIZZLES}")
    if mode in UNMEASURED:
        raise ValueError(f"swizzle mode: got {mode!r}, which no measurement anchors")


def swizzle(addresses: np.ndarray, mode: str) -> np.ndarray:
    """Shared byte addresses -> where the hardware puts those bytes."""
    check_mode(mode)
    addresses = np.asarray(addresses, np.int64)
    if mode == "none":
        return addresses
    chunk_bits = SPAN_BYTES[mode] - CHUNK_BYTES
    return addresses ^ ((addresses >> 3) & chunk_bits)
