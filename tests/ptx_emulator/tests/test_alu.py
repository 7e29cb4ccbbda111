"""Arithmetic against Python integers and exact rational references, on edge values."""

from fractions import Fraction

import numpy as np
import pytest

from ptx_emulator import Machine
from ptx_emulator.numeric import bf16_to_f32, f32_to_bf16

from .ptx_text import module

RNG = np.random.default_rng(7)
U32 = np.concatenate(
    [
        np.array([0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32),
        RNG.integers(0, 1 << 32, 23, dtype=np.uint32),
    ]
)
MASK32 = (1 << 32) - 1


def run(instructions, inputs, result="u32"):
    """Runs one warp; `inputs` are [32] arrays in %a, %b, ...; returns [32] of `result`."""
    widths = {"u16": "b16", "u32": "b32", "f32": "f32", "u64": "b64"}
    names = "abcd"[: len(inputs)]
    kinds = [f"u{8 * x.dtype.itemsize}" for x in inputs]
    declared = "\n".join(
        f".reg .{widths[k]} %{n};" for n, k in zip(names, kinds, strict=True)
    )
    loads = "\n".join(
        f"mad.wide.u32 %rd1, %lane, {x.dtype.itemsize}, %in{n};\n"
        f"ld.global.{k} %{n}, [%rd1];"
        for n, k, x in zip(names, kinds, inputs, strict=True)
    )
    size = {"u16": 2, "u32": 4, "u64": 8}[result]
    text = module(
        f"""{declared}
        .reg .{widths[result]} %d;
        .reg .pred %p;
        {loads}
        {instructions}
        mad.wide.u32 %rd2, %lane, {size}, %out;
        st.global.{result} [%rd2], %d;""",
        " ".join([*(f"in{n}" for n in names), "out"]),
    )
    machine = Machine(arch="sm_90a")
    out = machine.buffer(0, 32 * size)
    buffers = [machine.buffer(0, x) for x in inputs]
    machine.launch(0, machine.load(text).kernel(), 1, 32, [*buffers, out])
    machine.run()
    return out.array(np.dtype(f"u{size}"))


def s32(x):
    return x - (1 << 32) if x >> 31 else x


def c_divide(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


BINARY = {
    "add.u32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.s32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "mul.hi.s32": lambda a, b: s32(a) * s32(b) >> 32,
    "min.s32": lambda a, b: min(s32(a), s32(b)),
    "max.u32": max,
    "and.b32": lambda a, b: a & b,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: a << b if b < 32 else 0,
    "shr.u32": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: s32(a) >> min(b, 31),
}


@pytest.mark.parametrize("opcode", BINARY)
def test_binary(opcode):
    a, b = U32, np.roll(U32, 5)
    if opcode.startswith("sh"):
        b = np.array([0, 1, 31, 32, 33, 200, 1 << 31, MASK32] * 4, np.uint32)
    got = run(f"{opcode} %d, %a, %b;", [a, b])
    want = [BINARY[opcode](int(x), int(y)) & MASK32 for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


def test_division_truncates_towards_zero():
    a, b = U32, np.where(np.roll(U32, 3) == 0, 7, np.roll(U32, 3)).astype(np.uint32)
    pairs = [(s32(int(x)), s32(int(y))) for x, y in zip(a, b, strict=True)]
    assert run("div.s32 %d, %a, %b;", [a, b]).tolist() == [
        c_divide(x, y) & MASK32 for x, y in pairs
    ]
    assert run("rem.s32 %d, %a, %b;", [a, b]).tolist() == [
        (x - c_divide(x, y) * y) & MASK32 for x, y in pairs
    ]
    assert run("div.u32 %d, %a, %b;", [a, b]).tolist() == (a // b).tolist()


UNARY = {
    "popc.b32": lambda a: bin(a).count("1"),
    "clz.b32": lambda a: 32 - a.bit_length(),
    "bfind.u32": lambda a: a.bit_length() - 1,
    "bfind.shiftamt.u32": lambda a: 32 - a.bit_length() if a else -1,
    "brev.b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "not.b32": lambda a: ~a,
    "neg.s32": lambda a: -a,
    "abs.s32": lambda a: abs(s32(a)),
}


@pytest.mark.parametrize("opcode", UNARY)
def test_unary(opcode):
    got = run(f"{opcode} %d, %a;", [U32])
    assert got.tolist() == [UNARY[opcode](int(x)) & MASK32 for x in U32]


def test_wide_products():
    a, b = U32, np.roll(U32, 9)
    got = run("mul.wide.s32 %d, %a, %b;", [a, b], "u64")
    want = [s32(int(x)) * s32(int(y)) % (1 << 64) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want
    c = RNG.integers(0, 1 << 63, 32, dtype=np.uint64)
    got = run("mad.wide.u32 %d, %a, %b, %c;", [a, b, c], "u64")
    want = [
        (int(x) * int(y) + int(z)) % (1 << 64) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got.tolist() == want


def test_64_bit_high_product():
    a = RNG.integers(0, 1 << 64, 32, dtype=np.uint64)
    b = np.concatenate(
        [np.array([0, 1, (1 << 64) - 1, 1 << 63], np.uint64), a[4:][::-1]]
    )
    got = run("mul.hi.u64 %d, %a, %b;", [a, b], "u64")
    assert got.tolist() == [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]

    def signed(x):
        return int(x) - (1 << 64) if int(x) >> 63 else int(x)

    got = run("mul.hi.s64 %d, %a, %b;", [a, b], "u64")
    want = [
        (signed(x) * signed(y) >> 64) % (1 << 64) for x, y in zip(a, b, strict=True)
    ]
    assert got.tolist() == want


def test_bit_fields():
    position = np.array([0, 1, 5, 28, 31, 32, 40, 255] * 4, np.uint32)
    length = np.repeat(np.array([0, 1, 7, 32], np.uint32), 8)

    def extract(a, p, n):
        return a >> p & ((1 << n) - 1) if p < 32 else 0

    got = run("bfe.u32 %d, %a, %b, %c;", [U32, position, length])
    want = [
        extract(int(a), int(p), int(n))
        for a, p, n in zip(U32, position, length, strict=True)
    ]
    assert got.tolist() == want

    def extract_signed(a, p, n):
        field = extract(a, p, n)
        top = a >> max(min(p + n - 1, 31), 0) & 1
        return field | (~((1 << n) - 1) if top and n else 0)

    got = run("bfe.s32 %d, %a, %b, %c;", [U32, position, length])
    # Bits past the end of the value are its sign; a field inside it is sign-extended.
    inside = position + length <= 32
    want = np.array(
        [
            extract_signed(int(a), int(p), int(n)) & MASK32
            for a, p, n in zip(U32, position, length, strict=True)
        ]
    )
    assert got[inside].tolist() == want[inside].tolist()


def test_prmt_selects_and_replicates_the_sign():
    a, b = np.full(32, 0x83828180, np.uint32), np.full(32, 0x07060504, np.uint32)
    selector = RNG.integers(0, 1 << 16, 32, dtype=np.uint32)

    def permute(s):
        raw = (0x07060504 << 32 | 0x83828180).to_bytes(8, "little")
        out = 0
        for k in range(4):
            choice = s >> 4 * k & 15
            byte = raw[choice & 7]
            out |= ((255 if byte >> 7 else 0) if choice & 8 else byte) << 8 * k
        return out

    got = run("prmt.b32 %d, %a, %b, %c;", [a, b, selector])
    assert got.tolist() == [permute(int(s)) for s in selector]


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x96, 0xE8, 0xCA, 0x3C, 0xF8])
def test_lop3_is_its_truth_table(table):
    a, b, c = U32, np.roll(U32, 1), np.roll(U32, 2)
    got = run(f"lop3.b32 %d, %a, %b, %c, {table};", [a, b, c])
    for bit in (0, 7, 31):
        index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        assert (got >> bit & 1).tolist() == (table >> index & 1).tolist()


def test_comparisons_treat_nan_as_unordered():
    a = np.array([0.0, 1.0, np.nan, -0.0] * 8, np.float32)
    b = np.array([0.0, np.nan, np.nan, 0.0] * 8, np.float32)
    for name, want in {
        "eq": [1, 0, 0, 1], "ne": [0, 0, 0, 0], "neu": [0, 1, 1, 0], "ltu": [0, 1, 1, 0],
        "le": [1, 0, 0, 1], "num": [1, 0, 0, 1], "nan": [0, 1, 1, 0],
    }.items():  # fmt: skip
        got = run(
            f"mov.b32 %f1, %a;\nmov.b32 %f2, %b;\nsetp.{name}.f32 %p, %f1, %f2;\n"
            "selp.u32 %d, 1, 0, %p;",
            [a.view(np.uint32), b.view(np.uint32)],
        )
        assert got[:4].tolist() == want, name


def rounded_to_f32(exact):
    """Nearest f32 of a rational, ties to even, by Python's correctly rounded f64 path."""
    low = np.float32(float(exact))
    best = min(
        (np.nextafter(low, np.float32(s)) for s in (-np.inf, np.inf)),
        key=lambda x: abs(Fraction(float(x)) - exact),
    )
    candidates = [low, best]
    errors = [abs(Fraction(float(x)) - exact) for x in candidates]
    if errors[0] == errors[1]:
        return min(candidates, key=lambda x: int(np.float32(x).view(np.uint32)) & 1)
    return candidates[int(np.argmin(errors))]


def test_fma_rounds_once():
    a = RNG.standard_normal(32).astype(np.float32)
    b = RNG.standard_normal(32).astype(np.float32)
    c = (-(a.astype(np.float64) * b)).astype(np.float32)
    c[::3] *= np.float32(1 + 2**-20)
    # 1 + 2**-12 squared is 1 + 2**-11 + 2**-24: a tie that the last operand breaks.
    a[:2], b[:2], c[:2] = 1 + 2**-12, 1 + 2**-12, [2**-60, -(2**-60)]
    got = run(
        "mov.b32 %f1, %a; mov.b32 %f2, %b; mov.b32 %f3, %c;\n"
        "fma.rn.f32 %f4, %f1, %f2, %f3;\nmov.b32 %d, %f4;",
        [a.view(np.uint32), b.view(np.uint32), c.view(np.uint32)],
    ).view(np.float32)
    want = [
        rounded_to_f32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert got.tolist() == [float(x) for x in want]
    assert got[0] > got[1]


def test_bf16_rounds_to_nearest_even():
    values = np.array(
        [
            1.0,
            1 + 2**-8,
            1 + 3 * 2**-8,
            1 + 2**-8 + 2**-20,
            3.3e38,
            np.inf,
            -np.inf,
            1e-40,
        ],
        np.float32,
    )
    want = [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0x7F78, 0x7F80, 0xFF80]
    assert f32_to_bf16(values)[:7].tolist() == want
    assert f32_to_bf16(np.array([3.4e38], np.float32))[0] == 0x7F80
    assert f32_to_bf16(np.array([np.nan], np.float32))[0] == 0x7FFF
    every = np.arange(1 << 16, dtype=np.uint16)
    numbers = every[~np.isnan(bf16_to_f32(every))]
    assert (f32_to_bf16(bf16_to_f32(numbers)) == numbers).all()


def test_packed_conversion_puts_the_first_operand_high():
    a, b = np.full(32, 1.0, np.float32), np.full(32, -2.0, np.float32)
    got = run(
        "mov.b32 %f1, %a; mov.b32 %f2, %b;\ncvt.rn.bf16x2.f32 %d, %f1, %f2;",
        [a.view(np.uint32), b.view(np.uint32)],
    )
    assert got[0] == 0x3F80C000


def test_float_to_integer_saturates():
    x = np.array([1.5, -1.5, 2.5, np.nan, 1e20, -1e20, 0.49, -0.0] * 4, np.float32)
    got = run("mov.b32 %f1, %a;\ncvt.rzi.s32.f32 %d, %f1;", [x.view(np.uint32)])
    assert got[:8].view(np.int32).tolist() == [
        1, -1, 2, 0, 2**31 - 1, -(2**31), 0, 0,
    ]  # fmt: skip
    got = run("mov.b32 %f1, %a;\ncvt.rni.s32.f32 %d, %f1;", [x.view(np.uint32)])
    assert got[:3].view(np.int32).tolist() == [2, -2, 2]


def test_conversions_extend_by_the_sign_of_the_type():
    x = np.array([0x80, 0x7F, 0xFF, 0x8000] * 8, np.uint32)
    assert run("cvt.s32.s8 %d, %a;", [x])[:3].tolist() == [0xFFFFFF80, 0x7F, MASK32]
    assert run("cvt.u32.u8 %d, %a;", [x])[:3].tolist() == [0x80, 0x7F, 0xFF]
    got = run("cvt.s64.s32 %d, %a;", [U32], "u64")
    assert got.tolist() == [s32(int(v)) % (1 << 64) for v in U32]


def test_packing_and_unpacking():
    a, b = U32, np.roll(U32, 1)
    got = run(
        "mov.b64 %rd5, {%a, %b};\nmov.b64 {%r1, %r2}, %rd5;\nmov.u32 %d, %r2;", [a, b]
    )
    assert got.tolist() == b.tolist()
    got = run("mov.b32 {%h1, %h2}, %a;\nmov.b32 %d, {%h2, %h1};", [a])
    assert got.tolist() == [(int(v) & 0xFFFF) << 16 | int(v) >> 16 for v in a]


def test_funnel_shift():
    amount = np.array([0, 1, 31, 32, 33] * 6 + [5, 7], np.uint32)
    low, high = U32, np.roll(U32, 2)
    got = run("shf.l.wrap.b32 %d, %a, %b, %c;", [low, high, amount])
    want = [
        (((int(h) << 32 | int(lo)) << (int(n) & 31)) >> 32) & MASK32
        for lo, h, n in zip(low, high, amount, strict=True)
    ]
    assert got.tolist() == want
    got = run("shf.r.clamp.b32 %d, %a, %b, %c;", [low, high, amount])
    want = [
        ((int(h) << 32 | int(lo)) >> min(int(n), 32)) & MASK32
        for lo, h, n in zip(low, high, amount, strict=True)
    ]
    assert got.tolist() == want


def test_predicates_combine():
    got = run(
        "setp.gt.u32 %p1, %a, 100;\nsetp.lt.and.u32 %p2|%p3, %a, 0x80000000, %p1;\n"
        "selp.u32 %r1, 1, 0, %p2;\nselp.u32 %r2, 2, 0, %p3;\nor.b32 %d, %r1, %r2;",
        [U32],
    )
    want = [
        (1 if 100 < int(v) < 1 << 31 else 0)
        | (2 if int(v) > 100 and int(v) >> 31 else 0)
        for v in U32
    ]
    assert got.tolist() == want


def test_guarded_instructions_leave_the_other_lanes():
    got = run(
        "mov.u32 %d, 5;\nsetp.eq.u32 %p, %lane, 3;\n@%p mov.u32 %d, 6;\n@!%p add.u32 %d, %d, 10;",
        [U32],
    )
    assert got.tolist() == [6 if k == 3 else 15 for k in range(32)]


def test_special_registers():
    got = run("mov.u32 %d, %lanemask_lt;", [U32])
    assert got.tolist() == [(1 << k) - 1 for k in range(32)]
    assert set(run("mov.u32 %d, %ntid.x;", [U32])) == {32}
