"""Number formats of PTX in numpy: bf16 and f16 conversions, single-rounding fma, integer helpers, reductions."""

from __future__ import annotations

import numpy as np

u1, u2, u4, u8 = np.uint8, np.uint16, np.uint32, np.uint64
i1, i2, i4, i8 = np.int8, np.int16, np.int32, np.int64
f2, f4, f8 = np.float16, np.float32, np.float64

BF16_NAN = u2(0x7FFF)


def f32_to_bf16(x: np.ndarray) -> np.ndarray:
    """Rounds to nearest even; every NaN becomes the canonical one, as cvt.rn.bf16.f32 does."""
    bits = np.ascontiguousarray(x, f4).view(u4)
    rounded = ((bits + (u4(0x7FFF) + ((bits >> u4(16)) & u4(1)))) >> u4(16)).astype(u2)
    return np.where((bits & u4(0x7FFFFFFF)) > u4(0x7F800000), BF16_NAN, rounded)


def f32_to_bf16_rz(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x, f4).view(u4)
    truncated = (bits >> u4(16)).astype(u2)
    return np.where((bits & u4(0x7FFFFFFF)) > u4(0x7F800000), BF16_NAN, truncated)


def bf16_to_f32(x: np.ndarray) -> np.ndarray:
    return (np.asarray(x, u2).astype(u4) << u4(16)).view(f4)


def f32_to_f16(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, f4)
    return np.where(np.isnan(x), u2(0x7FFF), x.astype(f2).view(u2))


def f16_to_f32(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x, u2).view(f2).astype(f4)


TO_F32 = {"bf16": bf16_to_f32, "f16": f16_to_f32}
FROM_F32 = {"bf16": f32_to_bf16, "f16": f32_to_f16}


def fma_f32(a, b, c):
    """A * b + c rounded once: the product is exact in f64, the sum is rounded to odd before the last rounding."""
    product = np.asarray(a, f4).astype(f8) * np.asarray(b, f4).astype(f8)
    c = np.asarray(c, f4).astype(f8)
    total = np.atleast_1d(product + c)
    part = total - product
    error = np.atleast_1d((product - (total - part)) + (c - part))
    fix = np.isfinite(error) & (error != 0) & ((total.view(u8) & u8(1)) == 0)
    if fix.any():
        total = np.where(
            fix, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total
        )
    return total.astype(f4)


def packed(op, kind: str):
    """Lifts a function of f32 arrays to two packed 16-bit values in a 32-bit register."""
    wide, narrow = TO_F32[kind], FROM_F32[kind]

    def apply(*operands):
        halves = []
        for shift in (0, 16):
            parts = [
                wide(((np.asarray(x, u4) >> u4(shift)) & u4(0xFFFF)).astype(u2))
                for x in operands
            ]
            halves.append(np.asarray(narrow(op(*parts)), u2).astype(u4))
        return halves[0] | (halves[1] << u4(16))

    return apply


def shl(a, b):
    bits = a.dtype.itemsize * 8
    inside = b < bits
    return np.where(
        inside, a << np.where(inside, b, 0).astype(a.dtype), a.dtype.type(0)
    )


def shr(a, b):
    bits = a.dtype.itemsize * 8
    if a.dtype.kind == "i":
        return a >> np.minimum(b, bits - 1).astype(a.dtype)
    inside = b < bits
    return np.where(
        inside, a >> np.where(inside, b, 0).astype(a.dtype), a.dtype.type(0)
    )


def divide(a, b):
    """C division, towards zero; the result of x / 0 is unspecified in PTX (all ones here)."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(zero, ~a.dtype.type(0), a // safe)
    quotient = a // safe
    inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
    return np.where(zero, a.dtype.type(-1), quotient + inexact).astype(a.dtype)


def remainder(a, b):
    return (a - divide(a, b) * b).astype(a.dtype)


def popcount(x):
    x = np.asarray(x)
    counts = np.unpackbits(
        np.ascontiguousarray(np.atleast_1d(x)).view(u1).reshape(x.size, -1), axis=1
    ).sum(1)
    return counts.astype(u4)


def leading_zeros(x):
    x = np.atleast_1d(x)
    bits = np.unpackbits(
        x.astype(x.dtype.newbyteorder(">")).view(u1).reshape(x.size, -1), axis=1
    )
    return np.where(bits.any(1), bits.argmax(1), bits.shape[1]).astype(u4)


def highest_bit(x):
    """Bfind of an unsigned value: position of the top set bit, all ones when there is none."""
    x = np.atleast_1d(x)
    lead = leading_zeros(x)
    return np.where(x == 0, u4(0xFFFFFFFF), u4(x.dtype.itemsize * 8 - 1) - lead)


def highest_bit_shift(x):
    """bfind.shiftamt: how far left the top set bit has to go, all ones when there is none."""
    x = np.atleast_1d(x)
    return np.where(x == 0, u4(0xFFFFFFFF), leading_zeros(x))


def bit_reverse(x):
    x = np.atleast_1d(x)
    bits = np.unpackbits(
        np.ascontiguousarray(x).view(u1).reshape(x.size, -1), axis=1, bitorder="little"
    )
    return np.packbits(bits[:, ::-1], axis=1, bitorder="little").view(x.dtype)[:, 0]


def lop3(a, b, c, table: int):
    result = u4(0)
    for minterm in range(8):
        if table >> minterm & 1:
            result = result | (
                (a if minterm & 4 else ~a)
                & (b if minterm & 2 else ~b)
                & (c if minterm & 1 else ~c)
            )
    return result


def prmt(a, b, selector):
    a, b, selector = np.broadcast_arrays(np.atleast_1d(a), b, selector)
    pair = a.astype(u8) | (b.astype(u8) << u8(32))
    result = np.zeros(pair.shape, u4)
    for byte in range(4):
        choice = (selector >> u4(4 * byte)) & u4(15)
        value = (pair >> (u8(8) * (choice & u4(7)).astype(u8))) & u8(255)
        sign = np.where(value & u8(128), u8(255), u8(0))
        result |= np.where(choice & u4(8), sign, value).astype(u4) << u4(8 * byte)
    return result


def bit_extract(a, position, length):
    """bfe: unsigned zero-extends; signed replicates the top bit of the field (or of the value, past its end)."""
    bits = a.dtype.itemsize * 8
    position, length = np.asarray(position) & u4(255), np.asarray(length) & u4(255)
    unsigned = a.view(f"u{a.dtype.itemsize}")
    mask = shl(np.ones_like(unsigned), length) - unsigned.dtype.type(1)
    field = shr(unsigned, position) & mask
    if a.dtype.kind == "u":
        return field
    top = np.minimum(position + length - u4(1), bits - 1)
    negative = ((shr(unsigned, top) & unsigned.dtype.type(1)) != 0) & (length > 0)
    return np.where(negative, field | ~mask, field).view(a.dtype)


def bit_insert(source, target, position, length):
    position, length = np.asarray(position) & u4(255), np.asarray(length) & u4(255)
    one = target.dtype.type(1)
    mask = shl(shl(np.ones_like(target), length) - one, position)
    return (target & ~mask) | (shl(source, position) & mask)


def funnel(low, high, amount, left: bool, clamp: bool):
    amount = np.minimum(amount, 32) if clamp else np.asarray(amount) & u4(31)
    pair = low.astype(u8) | (high.astype(u8) << u8(32))
    if left:
        return (shl(pair, amount) >> u8(32)).astype(u4)
    return shr(pair, amount).astype(u4)


def multiply_high(a, b):
    """Upper half of the product of two 32- or 64-bit arrays."""
    if a.dtype.itemsize == 4:
        wide = i8 if a.dtype.kind == "i" else u8
        return ((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype)
    if a.dtype.kind == "i":
        high = multiply_high(a.view(u8), b.view(u8)).view(i8)
        return high - np.where(a < 0, b, 0) - np.where(b < 0, a, 0)
    mask = u8(0xFFFFFFFF)
    a0, a1, b0, b1 = a & mask, a >> u8(32), b & mask, b >> u8(32)
    middle = a1 * b0 + ((a0 * b0) >> u8(32))
    return a1 * b1 + (middle >> u8(32)) + ((a0 * b1 + (middle & mask)) >> u8(32))


def float_to_int(x, dtype, rounding: str):
    """cvt.rXi: rounds, saturates to the target's range, NaN becomes 0."""
    rounded = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[
        rounding
    ](np.asarray(x, f8))
    info = np.iinfo(dtype)
    low, high = rounded <= info.min, rounded >= float(info.max)
    inside = np.where(low | high | np.isnan(rounded), 0, rounded).astype(dtype)
    return np.where(low, dtype(info.min), np.where(high, dtype(info.max), inside))


INTEGER_REDUCTIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip

REDUCTION_DTYPES = {
    "u32": u4, "s32": i4, "b32": u4, "u64": u8, "s64": i8, "b64": u8, "f32": f4, "f64": f8,
    "f16": f2, "f16x2": f2, "bf16": u2, "bf16x2": u2,
}  # fmt: skip


def reduce_pair(op: str, kind: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """One step of an atomic or bulk reduction on arrays of `REDUCTION_DTYPES[kind]`."""
    if kind.startswith("bf16"):
        return f32_to_bf16(INTEGER_REDUCTIONS[op](bf16_to_f32(old), bf16_to_f32(new)))
    return INTEGER_REDUCTIONS[op](old, new).astype(old.dtype)


def reduce_replicas(
    op: str, kind: str, wide: bool, replicas: list[np.ndarray]
) -> np.ndarray:
    """multimem.ld_reduce over the ranks in rank order; the hardware's order and intermediate width are not specified.

    `wide` is `.acc::f32`: sum in f32 and round once. Without it each step is rounded to the type.
    """
    if op == "add" and wide:
        to_wide, to_narrow = TO_F32[kind[:-2]], FROM_F32[kind[:-2]]
        raw = [to_wide(r.view(u2)) for r in replicas]
        total = raw[0]
        for r in raw[1:]:
            total = total + r
        return to_narrow(total).view(replicas[0].dtype)
    total = replicas[0]
    for r in replicas[1:]:
        total = reduce_pair(op, kind, total, r)
    return total


def packed_bf16(op):
    return packed(op, "bf16")


def packed_f16(op):
    return packed(op, "f16")


def pack2(high, low, kind: str):
    """Cvt to a packed pair: the first operand goes to the upper half."""
    narrow = FROM_F32[kind]
    return (np.asarray(narrow(high)).astype(u4) << u4(16)) | np.asarray(
        narrow(low)
    ).astype(u4)
