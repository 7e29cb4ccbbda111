"""Matrix and instruction descriptors of wgmma and tcgen05.mma, every field checked.

Layouts: PTX ISA, matrix descriptor and instruction descriptor tables; the operand
addresses of wgmma are measured on an H200 (tests/gpu/hardware_tables), those of tcgen05
follow the same canonical layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .swizzle import CHUNK_BYTES, SPAN_BYTES, swizzle

CORE_ROWS = 8
WGMMA_SWIZZLE = {0: "none", 1: "128B", 2: "64B", 3: "32B"}
TCGEN05_SWIZZLE = {0: "none", 1: "128B_ATOM_32B", 2: "128B", 4: "64B", 6: "32B"}
INPUT_TYPES = {0: "f16", 1: "bf16"}
OUTPUT_TYPES = {0: "f16", 1: "f32"}


@dataclass(frozen=True)
class SharedDescriptor:
    """A matrix operand in shared memory; `address` counts in the CTA's window."""

    address: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int
    swizzle: str
    leading_absolute: bool


@dataclass(frozen=True)
class InstructionDescriptor:
    d_type: str
    a_type: str
    b_type: str
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    m: int
    n: int


def _field(word: int, low: int, bits: int) -> int:
    return word >> low & ((1 << bits) - 1)


def _refuse_reserved(word: int, ranges: list[tuple[int, int]], what: str) -> None:
    for low, bits in ranges:
        if value := _field(word, low, bits):
            raise ValueError(
                f"{what} {word:#x}: got {value:#x} in reserved bits "
                f"{low}..{low + bits - 1}, expected 0"
            )


def decode_wgmma_descriptor(desc: int) -> SharedDescriptor:
    _refuse_reserved(desc, [(14, 2), (30, 2), (46, 3), (52, 10)], "wgmma descriptor")
    return SharedDescriptor(
        address=_field(desc, 0, 14) << 4,
        leading_bytes=_field(desc, 16, 14) << 4,
        stride_bytes=_field(desc, 32, 14) << 4,
        base_offset=_field(desc, 49, 3),
        swizzle=WGMMA_SWIZZLE[_field(desc, 62, 2)],
        leading_absolute=False,
    )


def decode_tcgen05_descriptor(desc: int) -> SharedDescriptor:
    _refuse_reserved(desc, [(14, 2), (30, 2), (53, 8)], "tcgen05 descriptor")
    if (version := _field(desc, 46, 3)) != 1:
        raise ValueError(
            f"tcgen05 descriptor {desc:#x}: got version {version} in bits 46..48, "
            "expected 1"
        )
    mode = _field(desc, 61, 3)
    if mode not in TCGEN05_SWIZZLE:
        raise ValueError(
            f"tcgen05 descriptor {desc:#x}: got swizzle {mode}, expected one of "
            f"{sorted(TCGEN05_SWIZZLE)}"
        )
    return SharedDescriptor(
        address=_field(desc, 0, 14) << 4,
        leading_bytes=_field(desc, 16, 14) << 4,
        stride_bytes=_field(desc, 32, 14) << 4,
        base_offset=_field(desc, 49, 3),
        swizzle=TCGEN05_SWIZZLE[mode],
        leading_absolute=bool(_field(desc, 52, 1)),
    )


def operand_addresses(
    desc: SharedDescriptor, rows: int, k: int, element_bytes: int, mn_major: bool
) -> np.ndarray:
    """Shared address of every element of an operand tile: i64[rows of M or N, k]."""
    if desc.base_offset:
        raise ValueError(f"matrix base offset: got {desc.base_offset}, expected 0")
    if desc.leading_absolute:
        raise ValueError("leading dimension mode: got absolute, expected byte offset")
    if rows % CORE_ROWS:
        raise ValueError(
            f"operand rows: got {rows}, expected a multiple of {CORE_ROWS}"
        )
    row = np.arange(rows)[:, None]
    column = np.arange(k)[None, :]
    place = _mn_major_offsets if mn_major else _k_major_offsets
    offsets = place(desc, row, column, element_bytes)
    return swizzle(desc.address + offsets, desc.swizzle)


def _k_major_offsets(
    desc: SharedDescriptor, row: np.ndarray, k: np.ndarray, element_bytes: int
) -> np.ndarray:
    """Lines run along K. Swizzled: one span a row, the leading offset is not used."""
    group = row // CORE_ROWS * desc.stride_bytes
    byte = k * element_bytes
    if desc.swizzle == "none":
        core = byte // CHUNK_BYTES * desc.leading_bytes + byte % CHUNK_BYTES
        return group + row % CORE_ROWS * CHUNK_BYTES + core
    span = _span_bytes(desc)
    if desc.address % span + byte.max() >= span:
        raise ValueError(
            f"K-major operand at {desc.address:#x}: {byte.max() + element_bytes} bytes "
            f"along K do not fit the rest of a {desc.swizzle} swizzle line"
        )
    return group + row % CORE_ROWS * span + byte


def _mn_major_offsets(
    desc: SharedDescriptor, row: np.ndarray, k: np.ndarray, element_bytes: int
) -> np.ndarray:
    """Lines run along M or N: 8 lines of consecutive k make an atom."""
    byte = row * element_bytes
    if desc.swizzle == "none":
        line, across, along = CHUNK_BYTES, desc.stride_bytes, desc.leading_bytes
    else:
        line, across, along = _span_bytes(desc), desc.leading_bytes, desc.stride_bytes
        if desc.address % line:
            raise ValueError(
                f"MN-major operand: got address {desc.address:#x}, expected the start "
                f"of a {desc.swizzle} swizzle line"
            )
    atom = byte // line * across + byte % line
    return atom + k // CORE_ROWS * along + k % CORE_ROWS * line


def _span_bytes(desc: SharedDescriptor) -> int:
    if desc.swizzle not in SPAN_BYTES:
        raise ValueError(f"operand swizzle: got {desc.swizzle}, which is not modelled")
    return SPAN_BYTES[desc.swizzle]


def decode_instruction_descriptor(
    idesc: int, kind: str, cta_group: int
) -> InstructionDescriptor:
    """The 32-bit descriptor of a dense tcgen05.mma of kind f16."""
    if kind != "f16":
        raise ValueError(f"tcgen05.mma kind: got {kind!r}, expected 'f16'")
    _refuse_reserved(
        idesc,
        [(0, 3), (3, 1), (6, 1), (23, 1), (29, 1), (30, 2)],
        "instruction descriptor (sparsity, saturation, shift or reserved)",
    )
    types = []
    for name, low, bits, known in (
        ("D", 4, 2, OUTPUT_TYPES),
        ("A", 7, 3, INPUT_TYPES),
        ("B", 10, 3, INPUT_TYPES),
    ):
        if (code := _field(idesc, low, bits)) not in known:
            raise ValueError(
                f"type of {name}: got code {code}, expected one of {known}"
            )
        types.append(known[code])
    m, n = _field(idesc, 24, 5) << 4, _field(idesc, 17, 6) << 3
    _check_shape(m, n, cta_group)
    return InstructionDescriptor(
        *types,
        negate_a=bool(_field(idesc, 13, 1)),
        negate_b=bool(_field(idesc, 14, 1)),
        a_mn_major=bool(_field(idesc, 15, 1)),
        b_mn_major=bool(_field(idesc, 16, 1)),
        m=m,
        n=n,
    )


def _check_shape(m: int, n: int, cta_group: int) -> None:
    """Shapes of kind f16; with two CTAs each holds half of the rows of A and of B."""
    steps = {1: {64: 8, 128: 16}, 2: {128: 16, 256: 16}}
    if cta_group not in steps or m not in steps[cta_group]:
        raise ValueError(
            f"M of cta_group {cta_group}: got {m}, expected one of "
            f"{sorted(steps.get(cta_group, {}))}"
        )
    step = steps[cta_group][m]
    if n % step or not step <= n <= 256:
        raise ValueError(
            f"N of M = {m}, cta_group {cta_group}: got {n}, expected a multiple of "
            f"{step} up to 256"
        )
