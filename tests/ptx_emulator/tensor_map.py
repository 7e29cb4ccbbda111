"""The emulator's 128-byte tensor map: cuTensorMapEncodeTiled's checks, our own encoding.

The hardware's encoding is not public, so kernels must treat the bytes as opaque. Byte
layout, little endian, for host code that writes it through a replaced driver table:
magic "JTMA"; u8 dtype, rank, interleave, swizzle, l2_promotion, oob_fill (the driver's
enum values); 6 bytes of padding; u64 address, dims[5], strides_bytes[4]; u16 box[5];
u8 element_strides[5]; padding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

DTYPES = {
    "u8": (0, 1), "u16": (1, 2), "u32": (2, 4), "s32": (3, 4), "u64": (4, 8), "s64": (5, 8), "f16": (6, 2),
    "f32": (7, 4), "f64": (8, 8), "bf16": (9, 2),
}  # fmt: skip
SWIZZLES = (
    "none",
    "32B",
    "64B",
    "128B",
    "128B_ATOM_32B",
    "128B_ATOM_32B_FLIP_8B",
    "128B_ATOM_64B",
)
SWIZZLE_SPAN_BYTES = {"none": 1 << 30, "32B": 32, "64B": 64}
_LAYOUT = struct.Struct("<4s6B6xQ5Q4Q5H5B")
_MAGIC = b"JTMA"


@dataclass(frozen=True)
class TensorMap:
    dtype: str
    element_bytes: int
    rank: int
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: str
    swizzle: str
    oob_nan: bool


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"tensor map: {what}")


def encode_tensor_map(
    address: int,
    dims: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    *,
    dtype: str = "bf16",
    swizzle: str = "none",
    element_strides: Sequence[int] | None = None,
    oob_nan: bool = False,
) -> bytes:
    """Encodes a tiled tensor map.

    Args:
      address: device address of element 0, as the launching rank sees it.
      dims: sizes, innermost first, 1 to 5 of them.
      strides_bytes: byte strides of dims 1 and up (len(dims) - 1 of them); dim 0 is dense.
      box: box sizes, innermost first.
      dtype: one of `DTYPES`.
      swizzle: one of `SWIZZLES`.
      element_strides: traversal strides; all 1 by default.
      oob_nan: fill out-of-bounds elements with NaN instead of zero.

    Returns:
      128 bytes.

    Raises:
      ValueError: an argument that cuTensorMapEncodeTiled refuses.
    """
    rank = len(dims)
    steps = tuple(element_strides) if element_strides is not None else (1,) * rank
    _require(1 <= rank <= 5, f"rank {rank}, expected 1 to 5")
    _require(dtype in DTYPES, f"dtype {dtype!r}, expected one of {sorted(DTYPES)}")
    _require(swizzle in SWIZZLES, f"swizzle {swizzle!r}, expected one of {SWIZZLES}")
    _require(
        len(strides_bytes) == rank - 1,
        f"{len(strides_bytes)} strides for rank {rank}, expected {rank - 1}",
    )
    _require(
        len(box) == rank and len(steps) == rank,
        f"box {tuple(box)} and element strides {steps} need {rank} entries",
    )
    code, size = DTYPES[dtype]
    _require(address % 16 == 0, f"address {address:#x} is not a multiple of 16")
    for d in dims:
        _require(1 <= d <= 1 << 32, f"size {d}, expected 1 to 2**32")
    for s in strides_bytes:
        _require(
            s % 16 == 0 and 0 <= s < 1 << 40,
            f"stride {s} bytes, expected a multiple of 16 below 2**40",
        )
    for b, e in zip(box, steps, strict=True):
        _require(1 <= b <= 256, f"box size {b}, expected 1 to 256")
        _require(1 <= e <= 8, f"element stride {e}, expected 1 to 8")
    inner = box[0] * size
    _require(inner % 16 == 0, f"inner box of {inner} bytes is not a multiple of 16")
    span = SWIZZLE_SPAN_BYTES.get(swizzle, 128)
    _require(
        inner <= span,
        f"inner box of {inner} bytes exceeds the {swizzle} swizzle span of {span}",
    )

    def padded(values: Sequence[int], count: int) -> list[int]:
        return [*values, *([0] * (count - len(values)))]

    raw = _LAYOUT.pack(
        _MAGIC, code, rank, 0, SWIZZLES.index(swizzle), 0, int(oob_nan), address,
        *padded(dims, 5), *padded(strides_bytes, 4), *padded(box, 5), *padded(steps, 5),
    )  # fmt: skip
    return raw.ljust(128, b"\0")


def decode_tensor_map(raw: bytes) -> TensorMap:
    """Inverse of `encode_tensor_map`; raises ValueError for bytes that are not a tensor map of the emulator."""
    _require(
        len(raw) == 128 and raw[:4] == _MAGIC, "the 128 bytes are not a tensor map"
    )
    fields = _LAYOUT.unpack(raw[: _LAYOUT.size])
    code, rank, interleave, swizzle, _, oob, address = fields[1:8]
    name, size = next((n, s) for n, (c, s) in DTYPES.items() if c == code)
    _require(
        interleave == 0, f"interleave {interleave} is not supported, expected none"
    )
    dims, strides, box, steps = (
        fields[8:13],
        fields[13:17],
        fields[17:22],
        fields[22:27],
    )
    return TensorMap(
        name, size, rank, address, dims[:rank], strides[: rank - 1], box[:rank], steps[:rank], "none",
        SWIZZLES[swizzle], bool(oob),
    )  # fmt: skip
