"""ld, st and prefetch: weak ones inline, relaxed, acquire, release and volatile as steps."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import UNSIGNED_BY_BYTES, VALUE_TYPE, Emitter, inline, step
from ptx_emulator.memory import UNSIGNED
from ptx_emulator.ptx import TYPE_BYTES, Instruction
from ptx_emulator.warp import Warp

SPACE = r"(?:\.(?P<space>global|shared(?:::(?:cta|cluster))?|local|param(?:::entry)?|const))?"
CACHE = (
    r"(?:\.(?:ca|cg|cs|cv|lu|wb|wt))?(?:\.L1::\w+)?(?:\.L2::evict_\w+)?"
    r"(?P<hint>\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?"
)
VECTOR = r"(?:\.v(?P<vec>2|4|8))?"
TYPE = (
    r"\.(?P<t>b8|u8|s8|b16|u16|s16|f16|bf16|b32|u32|s32|f32|b64|u64|s64|f64|b128"
    r"|bf16x2|f16x2)"
)
SCOPE = r"\.(?P<scope>cta|cluster|gpu|sys)"
STRONG = (
    r"(?:\.(?P<volatile>volatile)|\.(?P<sem>relaxed|acquire|release|mmio)" + SCOPE + ")"
)
FORM = f"{SPACE}{CACHE}{VECTOR}{TYPE}"


def space_of(m: re.Match) -> str:
    """State space of a matched form; constant memory is global memory here."""
    space = (m.groupdict().get("space") or "generic").split("::")[0]
    return "global" if space == "const" else space


def _count(i: Instruction, m: re.Match, parts: list[str]) -> int:
    count = int(m["vec"] or 1)
    size = TYPE_BYTES[m["t"]] * count
    if len(parts) != count or size > 32 or (size == 32 and m["vec"] == "2"):
        raise i.unsupported(f"vector of {len(parts)}")
    return count


def _element(kind: str) -> tuple[int, int]:
    """Bytes of one loaded element, and elements a value (b128 is two of 8)."""
    return (8, 2) if kind == "b128" else (TYPE_BYTES[kind], 1)


def _take_hint(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(3 if m["hint"] else 2)
    if m["hint"]:
        e.source(i.operands[2], "b64")


@inline(rf"ld(?:\.weak)?{FORM}")
def _weak_load(e: Emitter, i: Instruction, m: re.Match) -> None:
    _take_hint(e, i, m)
    kind = m["t"]
    parts = e.vector(i.operands[0])
    element, split = _element(kind)
    count = _count(i, m, parts) * split
    address = e.address(i.operands[1])
    e.do(f"_m = w.load({space_of(m)!r}, {address}, {element}, {count}, ACT, {i.pc})")
    for n, text in enumerate(parts):
        register = e.destination(text)
        name = VALUE_TYPE[kind]
        code = "_m.copy()" if kind == "b128" else f"_m[:, {n}].copy()"
        if name[0] != "u":
            code += f".view({name})"
        e.set(register, code, kind)


@inline(rf"st(?:\.weak)?{FORM}")
def _weak_store(e: Emitter, i: Instruction, m: re.Match) -> None:
    _take_hint(e, i, m)
    kind = m["t"]
    parts = e.vector(i.operands[1])
    _count(i, m, parts)
    if space_of(m) == "param":
        e.do("pass")  # an argument of a device call, which traps when it is reached
        return
    address = e.address(i.operands[0])
    if kind == "b128":
        code = e.source(parts[0], kind)
        values = f"{code}[:, 0], {code}[:, 1]"
    else:
        size = TYPE_BYTES[kind]
        sources = (e.source(p, f"b{8 * size}") for p in parts)
        values = ", ".join(f"full({s}, {UNSIGNED_BY_BYTES[size]})" for s in sources)
    e.do(f"w.store({space_of(m)!r}, {address}, [{values}], ACT, {i.pc})")


@step(rf"ld{STRONG}{FORM}")
def _strong_load(e: Emitter, i: Instruction, m: re.Match):
    _take_hint(e, i, m)
    if m["sem"] == "release":
        raise i.unsupported()
    kind = m["t"]
    parts = e.vector(i.operands[0])
    element, split = _element(kind)
    count = _count(i, m, parts) * split
    registers = [e.destination(p) for p in parts]
    address = e.compile(e.address(i.operands[1]))
    space, sem, scope = space_of(m), m["sem"] or "relaxed", m["scope"] or "sys"

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        values = np.zeros((32, count), UNSIGNED[element])
        parts = w.resolve(space, address(w)[0][chosen], element * count, chosen)
        for part in parts:
            w.strong(chosen, part, element * count, "read", sem, scope, i.pc)
            loaded = part.memory.read(part.offsets, element, count, w.machine.strict)
            values[chosen[part.chosen]] = loaded
        for n, register in enumerate(registers):
            if register is not None:
                column = values if kind == "b128" else values[:, n]
                w.set(register, _extended(e, register, column, kind), lanes)

    return body


def _extended(e: Emitter, register: int, column: np.ndarray, kind: str) -> np.ndarray:
    """Sign-extends a loaded value to its register."""
    size = e.function.register_bytes[register]
    if kind[0] != "s" or size <= column.dtype.itemsize:
        return column
    return (
        column.view(f"i{column.dtype.itemsize}").astype(f"i{size}").view(UNSIGNED[size])
    )


@step(rf"st{STRONG}{FORM}")
def _strong_store(e: Emitter, i: Instruction, m: re.Match):
    _take_hint(e, i, m)
    kind = m["t"]
    if m["sem"] == "acquire" or kind == "b128":
        raise i.unsupported()
    parts = e.vector(i.operands[1])
    size = TYPE_BYTES[kind] * _count(i, m, parts)
    bits = f"b{8 * TYPE_BYTES[kind]}"
    codes = e.compile(e.address(i.operands[0]), *(e.source(p, bits) for p in parts))
    space, sem, scope = space_of(m), m["sem"] or "relaxed", m["scope"] or "sys"

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        address, *values = codes(w)
        element = UNSIGNED[TYPE_BYTES[kind]]
        data = np.stack([v.astype(element)[chosen] for v in values], 1)
        for part in w.resolve(space, address[chosen], size, chosen):
            w.strong(chosen, part, size, "write", sem, scope, i.pc)
            w.write(part, data[part.chosen])

    return body


@inline(
    r"prefetch(?:\.(?:global|local))?\.(?:L1|L2)(?:::evict_\w+)?",
    r"prefetchu\.L1",
    r"prefetch(?:\.(?:const|param))?\.tensormap",
    r"cp\.async\.bulk\.prefetch\.L2\.global(?:\.L2::cache_hint)?",
    r"applypriority\.global\.L2::evict_normal",
)
def _prefetch(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.address(i.operands[0])
    e.do("pass")
