"""The table of arithmetic, logic, comparison, conversion and move instructions."""

from __future__ import annotations

import re

from ptx_emulator import numeric
from ptx_emulator.codegen import NUMPY, VALUE_TYPE, Emitter, inline
from ptx_emulator.memory import LOCAL_WINDOW, SHARED_WINDOW
from ptx_emulator.ptx import TYPE_BYTES, Instruction

INTEGERS = "u16|s16|u32|s32|u64|s64"
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
# Addresses of parameters, globals and constants are generic as they are.
GENERIC_BASE = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}

# Opcode pattern | operand types | result type | expression. In the types, "t" is what the
# group t of the pattern matched and "w" is twice as wide; in the expression {T} and {W}
# are their numpy types, {H} the half of a packed type and {P} its lifting function.
TABLE = [
    (rf"add\.(?P<t>{INTEGERS})", "t t", "t", "{0} + {1}"),
    (rf"sub\.(?P<t>{INTEGERS})", "t t", "t", "{0} - {1}"),
    (rf"mul\.lo\.(?P<t>{INTEGERS})", "t t", "t", "{0} * {1}"),
    (r"mul\.hi\.(?P<t>u32|s32|u64|s64)", "t t", "t", "N.multiply_high(full({0}, {T}), full({1}, {T}))"),
    (r"mul\.wide\.(?P<t>u16|s16|u32|s32)", "t t", "w", "{0}.astype({W}) * {1}.astype({W})"),
    (rf"mad\.lo\.(?P<t>{INTEGERS})", "t t t", "t", "{0} * {1} + {2}"),
    (r"mad\.hi\.(?P<t>u32|s32)", "t t t", "t", "N.multiply_high(full({0}, {T}), full({1}, {T})) + {2}"),
    (r"mad\.wide\.(?P<t>u16|s16|u32|s32)", "t t w", "w", "{0}.astype({W}) * {1}.astype({W}) + {2}"),
    (rf"div\.(?P<t>{INTEGERS})", "t t", "t", "N.divide(*np.broadcast_arrays({0}, {1}))"),
    (rf"rem\.(?P<t>{INTEGERS})", "t t", "t", "N.remainder(*np.broadcast_arrays({0}, {1}))"),
    (rf"min\.(?P<t>{INTEGERS})", "t t", "t", "np.minimum({0}, {1})"),
    (rf"max\.(?P<t>{INTEGERS})", "t t", "t", "np.maximum({0}, {1})"),
    (r"neg\.(?P<t>s16|s32|s64|f32|f64)", "t", "t", "-{0}"),
    (r"abs\.(?P<t>s16|s32|s64|f32|f64)", "t", "t", "np.abs({0})"),
    (r"and\.(?P<t>b16|b32|b64|pred)", "t t", "t", "({0}) & ({1})"),
    (r"or\.(?P<t>b16|b32|b64|pred)", "t t", "t", "({0}) | ({1})"),
    (r"xor\.(?P<t>b16|b32|b64|pred)", "t t", "t", "({0}) ^ ({1})"),
    (r"not\.(?P<t>b16|b32|b64|pred)", "t", "t", "~({0})"),
    (r"shl\.(?P<t>b16|b32|b64)", "t u32", "t", "N.shl({0}, {1})"),
    (r"shr\.(?P<t>[bus](16|32|64))", "t u32", "t", "N.shr({0}, {1})"),
    (r"popc\.(?P<t>b32|b64)", "t", "u32", "N.popcount({0})"),
    (r"clz\.(?P<t>b32|b64)", "t", "u32", "N.leading_zeros({0})"),
    (r"bfind\.(?P<t>u32|u64)", "t", "u32", "N.highest_bit({0})"),
    (r"bfind\.shiftamt\.(?P<t>u32|u64)", "t", "u32", "N.highest_bit_shift({0})"),
    (r"brev\.(?P<t>b32|b64)", "t", "t", "N.bit_reverse({0})"),
    (r"bfe\.(?P<t>u32|s32|u64|s64)", "t u32 u32", "t", "N.bit_extract(full({0}, {T}), {1}, {2})"),
    (r"bfi\.(?P<t>b32|b64)", "t t u32 u32", "t", "N.bit_insert(full({0}, {T}), full({1}, {T}), {2}, {3})"),
    (r"prmt\.(?P<t>b32)", "t t t", "t", "N.prmt({0}, {1}, {2})"),
    (r"shf\.l\.wrap\.(?P<t>b32)", "t t u32", "t", "N.funnel({0}, {1}, {2}, True, False)"),
    (r"shf\.r\.wrap\.(?P<t>b32)", "t t u32", "t", "N.funnel({0}, {1}, {2}, False, False)"),
    (r"shf\.l\.clamp\.(?P<t>b32)", "t t u32", "t", "N.funnel({0}, {1}, {2}, True, True)"),
    (r"shf\.r\.clamp\.(?P<t>b32)", "t t u32", "t", "N.funnel({0}, {1}, {2}, False, True)"),
    (r"selp\.(?P<t>[busf](16|32|64))", "t t pred", "t", "where({2}, {0}, {1})"),
    (r"add(\.rn)?\.(?P<t>f32|f64)", "t t", "t", "{0} + {1}"),
    (r"sub(\.rn)?\.(?P<t>f32|f64)", "t t", "t", "{0} - {1}"),
    (r"mul(\.rn)?\.(?P<t>f32|f64)", "t t", "t", "{0} * {1}"),
    (r"fma\.rn\.(?P<t>f32)", "t t t", "t", "N.fma_f32({0}, {1}, {2})"),
    (r"div\.rn\.(?P<t>f32|f64)", "t t", "t", "{0} / {1}"),
    (r"rcp\.rn\.(?P<t>f32|f64)", "t", "t", "{T}(1) / {0}"),
    (r"sqrt\.rn\.(?P<t>f32|f64)", "t", "t", "np.sqrt({0})"),
    (r"min\.(?P<t>f32|f64)", "t t", "t", "np.fmin({0}, {1})"),
    (r"max\.(?P<t>f32|f64)", "t t", "t", "np.fmax({0}, {1})"),
    (r"add(\.rn)?\.(?P<t>f16)", "t t", "t", "{0} + {1}"),
    (r"sub(\.rn)?\.(?P<t>f16)", "t t", "t", "{0} - {1}"),
    (r"mul(\.rn)?\.(?P<t>f16)", "t t", "t", "{0} * {1}"),
    (r"add(\.rn)?\.(?P<t>bf16)", "t t", "t", "N.f32_to_bf16(N.bf16_to_f32({0}) + N.bf16_to_f32({1}))"),
    (r"sub(\.rn)?\.(?P<t>bf16)", "t t", "t", "N.f32_to_bf16(N.bf16_to_f32({0}) - N.bf16_to_f32({1}))"),
    (r"mul(\.rn)?\.(?P<t>bf16)", "t t", "t", "N.f32_to_bf16(N.bf16_to_f32({0}) * N.bf16_to_f32({1}))"),
    (r"add(\.rn)?\.(?P<t>bf16x2|f16x2)", "t t", "t", "{P}(np.add)({0}, {1})"),
    (r"sub(\.rn)?\.(?P<t>bf16x2|f16x2)", "t t", "t", "{P}(np.subtract)({0}, {1})"),
    (r"mul(\.rn)?\.(?P<t>bf16x2|f16x2)", "t t", "t", "{P}(np.multiply)({0}, {1})"),
    (r"cvt\.rn\.(?P<t>bf16)\.f32", "f32", "t", "N.f32_to_bf16({0})"),
    (r"cvt\.rz\.(?P<t>bf16)\.f32", "f32", "t", "N.f32_to_bf16_rz({0})"),
    (r"cvt\.rn\.(?P<t>f16)\.f32", "f32", "b16", "N.f32_to_f16({0})"),
    (r"cvt\.rn\.(?P<t>bf16x2|f16x2)\.f32", "f32 f32", "t", "N.pack2({0}, {1}, {H})"),
    (r"cvt\.(?P<t>f32)\.bf16", "bf16", "t", "N.bf16_to_f32({0})"),
    (r"cvt\.(?P<t>f32)\.f16", "b16", "t", "N.f16_to_f32({0})"),
    (r"cvt\.(?P<t>f64)\.f32", "f32", "t", "{0}.astype(f8)"),
    (r"cvt\.rn\.(?P<t>f32)\.f64", "f64", "t", "{0}.astype(f4)"),
]  # fmt: skip


def _from_table(operand_types: str, result: str, template: str):
    kinds = operand_types.split()

    def emit(e: Emitter, i: Instruction, m: re.Match) -> None:
        kind = m["t"]
        choose = {"t": kind, "w": WIDER.get(kind, "")}
        e.expect(len(kinds) + 1)
        operands = [
            e.source(text, choose.get(k, k))
            for text, k in zip(i.operands[1:], kinds, strict=True)
        ]
        half = kind[:-2] if kind.endswith("x2") else kind
        code = template.format(
            *operands,
            T=VALUE_TYPE[kind],
            W=VALUE_TYPE.get(choose["w"], ""),
            H=repr(half),
            P=f"N.packed_{half}" if kind.endswith("x2") else "",
        )
        kind_out = choose.get(result, result)
        e.set(e.destination(i.operands[0]), code, kind_out)

    return emit


for _pattern, _operands, _result, _template in TABLE:
    inline(_pattern)(_from_table(_operands, _result, _template))

_COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip


def _compare(op: str, kind: str, a: str, b: str) -> str:
    if kind[0] != "f":
        if op not in _COMPARE:
            raise ValueError(op)
        return f"({a} {_COMPARE[op]} {b})"
    unordered = f"(np.isnan({a}) | np.isnan({b}))"
    if op in ("num", "nan"):
        return f"(~{unordered})" if op == "num" else unordered
    if op == "ne":
        return f"(({a} != {b}) & ~{unordered})"
    if op == "neu":
        return f"({a} != {b})"
    if op[-1] == "u" and op[:-1] in _COMPARE:
        return f"(({a} {_COMPARE[op[:-1]]} {b}) | {unordered})"
    return f"({a} {_COMPARE[op]} {b})"


@inline(
    r"setp\.(?P<cmp>\w+)\.(?P<t>[busf](?:16|32|64)|pred)",
    r"setp\.(?P<cmp>\w+)\.(?P<bool>and|or|xor)\.(?P<t>[busf](?:16|32|64))",
)
def _setp(e: Emitter, i: Instruction, m: re.Match) -> None:
    combine = m.groupdict().get("bool")
    e.expect(4 if combine else 3)
    kind = m["t"]
    try:
        first = _compare(
            m["cmp"], kind, e.source(i.operands[1], kind), e.source(i.operands[2], kind)
        )
    except (ValueError, KeyError):
        raise i.unsupported("comparison") from None
    second = f"(~{first})"
    if combine:
        sign = {"and": "&", "or": "|", "xor": "^"}[combine]
        third = e.source(i.operands[3], "pred")
        first, second = f"({first} {sign} ({third}))", f"({second} {sign} ({third}))"
    targets = i.operands[0].split("|")
    codes = [first, second]
    if len(targets) == 2:
        e.do(f"_p = ({codes[0]}, {codes[1]})")
        codes = ["_p[0]", "_p[1]"]
    for target, code in zip(targets, codes, strict=False):
        e.set(e.destination(target.strip()), code, "pred")


@inline(r"lop3\.b32")
def _lop3(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(5)
    a, b, c = (e.source(x, "b32") for x in i.operands[1:4])
    e.set(
        e.destination(i.operands[0]),
        f"N.lop3({a}, {b}, {c}, {int(i.operands[4], 0)})",
        "b32",
    )


@inline(r"mov\.(?P<t>pred|[busf](?:16|32|64)|b128)")
def _mov(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    kind, (target, value) = m["t"], i.operands
    if value.startswith("{"):
        _pack(e, kind, target, e.vector(value))
    elif target.startswith("{"):
        _unpack(e, kind, e.vector(target), value)
    else:
        code = e.source(value, kind)
        e.set(e.destination(target), code, kind)


def _pack(e: Emitter, kind: str, target: str, parts: list[str]) -> None:
    size = TYPE_BYTES[kind] // len(parts)
    codes = [e.source(p, f"b{8 * size}") for p in parts]
    if kind == "b128":
        if len(parts) != 2:
            raise e.instruction.unsupported("b128 from parts that are not two b64")
        code = f"np.stack([full({codes[0]}, u8), full({codes[1]}, u8)], 1)"
    else:
        wide = VALUE_TYPE[kind]
        code = " | ".join(
            f"(({c}).astype({wide}) << {wide}({8 * size * n}))"
            for n, c in enumerate(codes)
        )
    e.set(e.destination(target), code, kind)


def _unpack(e: Emitter, kind: str, parts: list[str], value: str) -> None:
    size = TYPE_BYTES[kind] // len(parts)
    e.do(f"_v = {e.source(value, kind)}")
    for n, part in enumerate(parts):
        target = e.destination(part)
        if kind == "b128":
            code = (
                f"_v[:, {n}].copy()"
                if len(parts) == 2
                else f"np.ascontiguousarray(_v).view(u4)[:, {n}].copy()"
            )
        else:
            code = f"(_v >> {VALUE_TYPE[kind]}({8 * size * n})).astype(u{size})"
        e.set(target, code, f"b{8 * size}")


_INT = r"[us](?:8|16|32|64)"


@inline(
    rf"cvt\.(?P<d>{_INT})\.(?P<s>{_INT})", rf"cvt\.sat\.(?P<d>{_INT})\.(?P<s>{_INT})"
)
def _cvt_integer(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    code = e.source(i.operands[1], m["s"])
    dtype = NUMPY[VALUE_TYPE[m["d"]]]
    if ".sat." in i.opcode:
        limits = numeric.np.iinfo(dtype)
        source = numeric.np.iinfo(NUMPY[VALUE_TYPE[m["s"]]])
        code = f"np.clip({code}, {max(limits.min, source.min)}, {min(limits.max, source.max)})"
    e.set(
        e.destination(i.operands[0]), f"({code}).astype({VALUE_TYPE[m['d']]})", m["d"]
    )


@inline(
    rf"cvt\.rn\.(?P<d>f32|f64)\.(?P<s>{_INT})",
    rf"cvt\.rn\.(?P<d>f16|bf16)\.(?P<s>{_INT})",
)
def _cvt_to_float(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    code = e.source(i.operands[1], m["s"])
    if m["d"] == "bf16":
        raise i.unsupported("integer to bf16 rounds twice here")
    e.set(
        e.destination(i.operands[0]), f"({code}).astype({VALUE_TYPE[m['d']]})", m["d"]
    )


@inline(rf"cvt\.(?P<round>rni|rzi|rmi|rpi)\.(?P<d>{_INT})\.(?P<s>f32|f64)")
def _cvt_to_integer(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    code = e.source(i.operands[1], m["s"])
    e.set(
        e.destination(i.operands[0]),
        f"N.float_to_int({code}, {VALUE_TYPE[m['d']]}, {m['round']!r})",
        m["d"],
    )


@inline(r"cvt\.(?P<round>rni|rzi|rmi|rpi)\.(?P<t>f32|f64)\.(?P=t)")
def _cvt_round(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    function = {
        "rni": "np.rint",
        "rzi": "np.trunc",
        "rmi": "np.floor",
        "rpi": "np.ceil",
    }[m["round"]]
    e.set(
        e.destination(i.operands[0]),
        f"{function}({e.source(i.operands[1], m['t'])})",
        m["t"],
    )


@inline(r"cvta\.(?P<to>to\.)?(?P<space>global|const|local|param|shared)(?:::cta)?\.u64")
def _cvta(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    base = GENERIC_BASE.get(m["space"], 0)
    code = e.source(i.operands[1], "u64")
    if base:
        code = f"{code} {'-' if m['to'] else '+'} u8({base})"
    e.set(e.destination(i.operands[0]), code, "u64")


@inline(r"isspacep\.(?P<space>global|shared|shared::cta|shared::cluster|local)")
def _isspacep(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    code = f"w.in_space({m['space']!r}, {e.source(i.operands[1], 'u64')})"
    e.set(e.destination(i.operands[0]), code, "pred")


@inline(r"mapa(?P<shared>\.shared::cluster)?\.(?P<t>u32|u64)")
def _mapa(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(3)
    address, rank = e.source(i.operands[1], m["t"]), e.source(i.operands[2], "u32")
    e.set(
        e.destination(i.operands[0]),
        f"w.map_to_cta({address}, {rank}, {bool(m['shared'])})",
        m["t"],
    )


@inline(r"getctarank\.shared::cluster\.u32")
def _getctarank(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    e.set(
        e.destination(i.operands[0]),
        f"{e.source(i.operands[1], 'u32')} >> u4(24)",
        "u32",
    )


@inline(r"createpolicy\.fractional\.L2::\w+\.b64")
def _createpolicy(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.set(e.destination(i.operands[0]), "u8(0)", "b64")
