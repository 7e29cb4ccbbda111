"""Loads, stores, atomics, multimem and fences."""

from __future__ import annotations

import re

import numpy as np

from .codegen import UNSIGNED_BY_BYTES, VALUE_TYPE, Emitter, inline, step
from .errors import EmulationError
from .memory import UNSIGNED
from .numeric import REDUCTION_DTYPES, i4, i8, reduce_pair, reduce_replicas, u4
from .ptx import TYPE_BYTES, Instruction
from .warp import MULTICAST, UNICAST, Warp

SPACE = r"(?:\.(?P<space>global|shared(?:::(?:cta|cluster))?|local|param(?:::entry)?|const))?"
CACHE = r"(?:\.(?:ca|cg|cs|cv|lu|wb|wt|nc))?(?:\.L1::\w+)?(?:\.L2::evict_\w+)?(?P<hint>\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?"
VECTOR = r"(?:\.v(?P<vec>2|4|8))?"
TYPE = r"\.(?P<t>b8|u8|s8|b16|u16|s16|f16|bf16|b32|u32|s32|f32|b64|u64|s64|f64|b128|bf16x2|f16x2)"
SCOPE = r"\.(?P<scope>cta|cluster|gpu|sys)"


def _space(m: re.Match) -> str:
    space = m.groupdict().get("space") or "generic"
    space = space.split("::")[0]
    return {"const": "global"}.get(space, space)


def _check_vector(i: Instruction, m: re.Match, parts: list[str]) -> int:
    count = int(m["vec"] or 1)
    size = TYPE_BYTES[m["t"]] * count
    if len(parts) != count or size > 32 or (size == 32 and m["vec"] == "2"):
        raise i.unsupported(f"vector of {len(parts)}")
    return count


def _element(kind: str) -> tuple[int, int]:
    """Bytes of one loaded element and elements a value (b128 is two of 8)."""
    return (8, 2) if kind == "b128" else (TYPE_BYTES[kind], 1)


def _set_loaded(e: Emitter, kind: str, targets: list[str]) -> None:
    for n, text in enumerate(targets):
        register = e.destination(text)
        if kind == "b128":
            e.set(register, "_m.copy()", kind)
        else:
            name = VALUE_TYPE[kind]
            code = f"_m[:, {n}].copy()"
            e.set(register, f"{code}.view({name})" if name[0] != "u" else code, kind)


@inline(
    rf"(?:ld|ldu)(?:\.weak)?{SPACE}{CACHE}{VECTOR}{TYPE}",
    rf"st(?:\.weak)?{SPACE}{CACHE}{VECTOR}{TYPE}",
)
def _weak(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(3 if m["hint"] else 2)
    kind, load = m["t"], i.mnemonic != "st"
    if m["hint"]:
        e.source(i.operands[2], "b64")
    parts = e.vector(i.operands[0 if load else 1])
    count = _check_vector(i, m, parts)
    element, split = _element(kind)
    if load:
        e.do(
            f"_m = w.load({_space(m)!r}, {e.address(i.operands[1])}, {element}, {count * split}, ACT, {i.pc})"
        )
        _set_loaded(e, kind, parts)
        return
    if _space(m) == "param":
        e.do("pass")  # an argument of a device call, which traps when it is reached
        return
    address = e.address(i.operands[0])
    if kind == "b128":
        code = e.source(parts[0], kind)
        values = f"[{code}[:, 0], {code}[:, 1]]"
    else:
        unsigned = UNSIGNED_BY_BYTES[element]
        values = (
            "["
            + ", ".join(
                f"full({e.source(p, f'b{8 * element}')}, {unsigned})" for p in parts
            )
            + "]"
        )
    e.do(f"w.store({_space(m)!r}, {address}, {values}, ACT, {i.pc})")


STRONG = (
    r"(?:\.(?P<volatile>volatile)|\.(?P<sem>relaxed|acquire|release|mmio)" + SCOPE + ")"
)


@step(rf"ld{STRONG}{SPACE}{CACHE}{VECTOR}{TYPE}")
def _strong_load(e: Emitter, i: Instruction, m: re.Match):
    e.expect(3 if m["hint"] else 2)
    if m["sem"] == "release":
        raise i.unsupported()
    kind = m["t"]
    parts = e.vector(i.operands[0])
    count = _check_vector(i, m, parts)
    element, split = _element(kind)
    registers = [e.destination(p) for p in parts]
    sizes = [e.function.register_bytes[r] if r is not None else 0 for r in registers]
    address = e.compile(e.address(i.operands[1]))
    space, sem, scope = _space(m), m["sem"] or "relaxed", m["scope"] or "sys"

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        values = np.zeros((32, count * split), UNSIGNED[element])
        size = element * count * split
        w.access_lanes = chosen
        for memory, offsets, pick, path in w.resolve(
            space, address(w)[0][chosen], size
        ):
            if path is not None and w.machine.checker is not None:
                w.machine.checker.strong(
                    w,
                    chosen[pick],
                    memory,
                    offsets,
                    size,
                    "read",
                    sem,
                    scope,
                    path,
                    i.pc,
                )
            values[chosen[pick]] = memory.read(
                offsets, element, count * split, w.machine.strict
            )
        for n, (register, size) in enumerate(zip(registers, sizes, strict=True)):
            if kind == "b128":
                w.set(register, values, lanes)
            elif register is not None:
                column = values[:, n]
                if kind[0] == "s" and size > element:
                    column = (
                        column.view(f"i{element}")
                        .astype(f"i{size}")
                        .view(UNSIGNED[size])
                    )
                w.set(register, column, lanes)

    return body


@step(rf"st{STRONG}{SPACE}{CACHE}{VECTOR}{TYPE}")
def _strong_store(e: Emitter, i: Instruction, m: re.Match):
    e.expect(3 if m["hint"] else 2)
    if m["sem"] == "acquire":
        raise i.unsupported()
    kind = m["t"]
    parts = e.vector(i.operands[1])
    count = _check_vector(i, m, parts)
    element = TYPE_BYTES[kind]
    if kind == "b128":
        raise i.unsupported("strong b128 store")
    codes = e.compile(
        e.address(i.operands[0]), *(e.source(p, f"b{8 * element}") for p in parts)
    )
    space, sem, scope = _space(m), m["sem"] or "relaxed", m["scope"] or "sys"

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        address, *values = codes(w)
        data = np.stack([v.astype(UNSIGNED[element])[chosen] for v in values], 1)
        w.access_lanes = chosen
        for memory, offsets, pick, path in w.resolve(
            space, address[chosen], element * count
        ):
            if path is not None and w.machine.checker is not None:
                w.machine.checker.strong(
                    w,
                    chosen[pick],
                    memory,
                    offsets,
                    element * count,
                    "write",
                    sem,
                    scope,
                    path,
                    i.pc,
                )
            if memory.watch is not None:
                memory.watch(offsets, element * count)
            if memory.write(offsets, data[pick]):
                w.machine.progress += 1

    return body


# Atomics -------------------------------------------------------------------------------------------------------------

ATOMIC_SEM = r"(?:\.(?P<sem>relaxed|acquire|release|acq_rel))?(?:" + SCOPE + ")?"
ATOMIC_OP = r"\.(?P<op>add|inc|dec|min|max|and|or|xor|exch|cas)(?P<noftz>\.noftz)?"
ATOMIC_HINT = r"(?P<hint>\.L2::cache_hint)?"
_BITWISE = {"and", "or", "xor"}


def _atomic_kind(i: Instruction, op: str, kind: str) -> None:
    integer = kind[0] in "us"
    allowed = {
        "add": integer or kind[0] == "f" or kind.startswith("bf16"),
        "inc": kind == "u32", "dec": kind == "u32",
        "min": integer, "max": integer,
        "exch": kind in ("b32", "b64", "u32", "u64", "s32"),
        "cas": kind in ("b16", "b32", "b64", "u32", "u64", "s32"),
    }.get(op, kind in ("b32", "b64"))  # fmt: skip
    if not allowed:
        raise i.unsupported(f"atomic {op} on .{kind}")


def _update(
    op: str, kind: str, old: np.ndarray, operands: list[np.ndarray]
) -> np.ndarray:
    """New value of one location; all arrays have one element of the unsigned type."""
    new = operands[0]
    if op == "exch":
        return new
    if op == "cas":
        return operands[1] if old[0] == new[0] else old
    if op == "inc":
        return np.zeros(1, u4) if old[0] >= new[0] else old + u4(1)
    if op == "dec":
        return new if old[0] == 0 or old[0] > new[0] else old - u4(1)
    dtype = REDUCTION_DTYPES[kind]
    return reduce_pair(op, kind, old.view(dtype), new.view(dtype)).view(old.dtype)


def _atomic(e: Emitter, i: Instruction, m: re.Match, returns: bool):
    op, kind = m["op"], m["t"]
    _atomic_kind(i, op, kind)
    operands = i.operands[1:] if returns else list(i.operands)
    if m["hint"]:
        operands.pop()
    if len(operands) != (3 if op == "cas" else 2) or any(
        o.startswith("{") for o in operands
    ):
        raise i.unsupported("operands of the atomic")
    target = e.destination(i.operands[0]) if returns else None
    size = TYPE_BYTES[kind]
    codes = e.compile(
        e.address(operands[0]), *(e.source(o, f"b{8 * size}") for o in operands[1:])
    )
    space, sem, scope = _space(m), m["sem"] or "relaxed", m["scope"] or "gpu"

    def body(w: Warp, lanes: np.ndarray):
        address, *values = codes(w)
        values = [v.astype(UNSIGNED[size]) for v in values]
        out = np.zeros(32, UNSIGNED[size])
        for lane in np.nonzero(lanes)[0]:
            w.access_lanes = np.array([lane])
            ((memory, offset, _, path),) = w.resolve(
                space, address[lane : lane + 1], size
            )
            if path is None:
                raise EmulationError(
                    "unsupported", "atomic on local or parameter memory"
                )
            if w.machine.checker is not None:
                w.machine.checker.strong(
                    w,
                    w.access_lanes,
                    memory,
                    offset,
                    size,
                    "update",
                    sem,
                    scope,
                    path,
                    i.pc,
                )
            old = memory.read(offset, size, 1, w.machine.strict)[:, 0]
            new = _update(op, kind, old, [v[lane : lane + 1] for v in values])
            if memory.watch is not None:
                memory.watch(offset, size)
            if memory.write(offset, new.reshape(1, 1)):
                w.machine.progress += 1
            out[lane] = old[0]
        w.set(target, out, lanes)

    return body


@step(rf"atom{ATOMIC_SEM}{SPACE}{ATOMIC_OP}{ATOMIC_HINT}{TYPE}")
def _atom(e: Emitter, i: Instruction, m: re.Match):
    return _atomic(e, i, m, True)


@step(rf"red(?:\.async_not)?{ATOMIC_SEM}{SPACE}{ATOMIC_OP}{ATOMIC_HINT}{TYPE}")
def _red(e: Emitter, i: Instruction, m: re.Match):
    return _atomic(e, i, m, False)


# Multimem ------------------------------------------------------------------------------------------------------------

MULTIMEM_ORDER = (
    r"(?:\.(?P<weak>weak)|\.(?P<sem>relaxed|acquire|release)"
    + SCOPE
    + r")?(?:\.global)?"
)


def _multicast_parts(w: Warp, address: np.ndarray, size: int):
    """(window, offsets, pick) of lane addresses, all of them in multicast windows and aligned."""
    space, rank = w.machine.space, w.cta.launch.rank
    if (address % size).any():
        raise EmulationError("alignment", f"multimem address of a {size}-byte access")
    low, high = int(address.min()), int(address.max())
    window = space.find(rank, low)
    if high + size <= window.end:
        parts = [(window, address - window.base + window.offset, slice(None))]
    else:
        parts = []
        for n in range(address.size):
            window, offset = space.contiguous(rank, int(address[n]), size)
            parts.append((window, np.array([offset + window.offset]), np.array([n])))
    for window, _, _ in parts:
        if not window.multicast:
            raise EmulationError(
                "multicast",
                f"multimem on the unicast address of {window.replicas[0].label}",
            )
    return parts


def _multimem_shape(i: Instruction, m: re.Match, parts: list[str]) -> tuple[int, int]:
    element, count = TYPE_BYTES[m["t"]], int(m["vec"] or 1)
    if len(parts) != count or element * count > 16:
        raise i.unsupported("vector of a multimem access")
    return element, count


@step(
    rf"multimem\.ld_reduce{MULTIMEM_ORDER}\.(?P<op>add|min|max|and|or|xor)(?P<acc>\.acc::f32)?{VECTOR}"
    r"\.(?P<t>u32|s32|u64|s64|b32|b64|f32|f64|f16|f16x2|bf16|bf16x2)"
)
def _multimem_load(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    parts = e.vector(i.operands[0])
    element, count = _multimem_shape(i, m, parts)
    kind, op, wide = m["t"], m["op"], bool(m["acc"])
    if wide and (op != "add" or kind not in ("f16x2", "bf16x2")):
        raise i.unsupported(".acc::f32 form")
    if (
        m["vec"]
        and kind[0] not in "fb"
        or kind in ("f16", "bf16")
        and not m["vec"]
        or m["sem"] == "release"
    ):
        raise i.unsupported("type of multimem.ld_reduce")
    registers = [e.destination(p) for p in parts]
    address = e.compile(e.address(i.operands[1]))
    sem, scope = m["sem"], m["scope"]
    dtype = REDUCTION_DTYPES[kind]

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        values = np.zeros((32, count), UNSIGNED[element])
        for window, offsets, pick in _multicast_parts(
            w, address(w)[0][chosen], element * count
        ):
            replicas = []
            for memory in window.replicas:
                if w.machine.checker is not None:
                    w.machine.checker.access(
                        w,
                        chosen[pick],
                        memory,
                        offsets,
                        element * count,
                        False,
                        MULTICAST,
                        i.pc,
                    )
                    if sem == "acquire":
                        w.machine.checker.strong(
                            w,
                            chosen[pick],
                            memory,
                            offsets,
                            element * count,
                            "read",
                            sem,
                            scope,
                            MULTICAST,
                            i.pc,
                        )
                raw = np.ascontiguousarray(
                    memory.read(offsets, element, count, w.machine.strict)
                )
                replicas.append(raw.view(dtype))
            total = reduce_replicas(op, kind, wide, replicas)
            values[chosen[pick]] = np.ascontiguousarray(total).view(UNSIGNED[element])
        w.machine.counters["multimem.ld_reduce"] += 1
        for n, register in enumerate(registers):
            w.set(register, values[:, n], lanes)

    return body


@step(
    rf"multimem\.st{MULTIMEM_ORDER}{VECTOR}\.(?P<t>u32|s32|u64|s64|b32|b64|f32|f64|f16|f16x2|bf16|bf16x2)"
)
def _multimem_store(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    parts = e.vector(i.operands[1])
    element, count = _multimem_shape(i, m, parts)
    if m["sem"] == "acquire" or (m["vec"] and m["t"][0] not in "fb"):
        raise i.unsupported("form of multimem.st")
    codes = e.compile(
        e.address(i.operands[0]), *(e.source(p, f"b{8 * element}") for p in parts)
    )
    sem, scope = m["sem"], m["scope"]

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        address, *values = codes(w)
        data = np.stack([v.astype(UNSIGNED[element])[chosen] for v in values], 1)
        checker = w.machine.checker
        size = element * count
        for window, offsets, pick in _multicast_parts(w, address[chosen], size):
            for memory in window.replicas:
                if checker is not None and (sem is None or sem == "relaxed"):
                    checker.access(
                        w, chosen[pick], memory, offsets, size, True, MULTICAST, i.pc
                    )
                elif checker is not None:
                    checker.strong(
                        w,
                        chosen[pick],
                        memory,
                        offsets,
                        size,
                        "write",
                        sem,
                        scope,
                        MULTICAST,
                        i.pc,
                    )
                if memory.write(offsets, data[pick]):
                    w.machine.progress += 1
        w.machine.counters["multimem.st"] += 1

    return body


@step(
    rf"multimem\.red{MULTIMEM_ORDER}\.(?P<op>add|min|max|and|or|xor){VECTOR}"
    r"\.(?P<t>u32|s32|u64|s64|b32|b64|f32|f64|f16|f16x2|bf16|bf16x2)"
)
def _multimem_red(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    parts = e.vector(i.operands[1])
    element, count = _multimem_shape(i, m, parts)
    if m["weak"] or m["sem"] == "acquire":
        raise i.unsupported("form of multimem.red")
    codes = e.compile(
        e.address(i.operands[0]), *(e.source(p, f"b{8 * element}") for p in parts)
    )
    sem, scope = m["sem"] or "relaxed", m["scope"] or "sys"
    op, kind, dtype = m["op"], m["t"], REDUCTION_DTYPES[m["t"]]

    def body(w: Warp, lanes: np.ndarray):
        address, *values = codes(w)
        size = element * count
        for lane in np.nonzero(lanes)[0]:
            data = np.array([[v[lane] for v in values]], UNSIGNED[element])
            ((window, offset, _),) = _multicast_parts(w, address[lane : lane + 1], size)
            for memory in window.replicas:
                if w.machine.checker is not None:
                    w.machine.checker.strong(
                        w,
                        np.array([lane]),
                        memory,
                        offset,
                        size,
                        "update",
                        sem,
                        scope,
                        MULTICAST,
                        i.pc,
                    )
                old = np.ascontiguousarray(
                    memory.read(offset, element, count, w.machine.strict)
                )
                new = reduce_pair(op, kind, old.view(dtype), data.view(dtype)).view(
                    UNSIGNED[element]
                )
                if memory.write(offset, new):
                    w.machine.progress += 1
        w.machine.counters["multimem.red"] += 1

    return body


# Fences --------------------------------------------------------------------------------------------------------------


@step(
    r"fence\.(?P<sem>sc|acq_rel|acquire|release)\.(?P<scope>cta|cluster|gpu|sys)",
    r"membar\.(?P<scope>cta|gl|sys)",
    r"fence\.(?P<scope>cta)",
)
def _fence(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)
    scope = "gpu" if m["scope"] == "gl" else m["scope"]
    sem = m.groupdict().get("sem") or "sc"

    def body(w: Warp, lanes: np.ndarray):
        if w.machine.checker is not None:
            w.machine.checker.fence(w, lanes, "acq_rel" if sem == "sc" else sem, scope)

    return body


@step(
    r"fence\.proxy\.(?P<proxy>alias|async)(?:\.(?P<space>global|shared::cta|shared::cluster))?"
)
def _fence_proxy(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)
    if m["proxy"] == "alias" and m["space"]:
        raise i.unsupported()
    space = (m["space"] or "all").split("::")[0]

    def body(w: Warp, lanes: np.ndarray):
        if w.machine.checker is not None:
            w.machine.checker.proxy_fence(w, lanes, m["proxy"], space)

    return body


@step(r"fence\.mbarrier_init\.release\.cluster")
def _fence_init(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if w.machine.checker is not None:
            w.machine.checker.init_fence(w, lanes)

    return body


@inline(
    r"prefetch(?:\.(?:global|local))?\.(?:L1|L2)(?:::evict_\w+)?",
    r"prefetchu\.L1",
    r"prefetch(?:\.(?:const|param))?\.tensormap",
    r"cp\.async\.bulk\.prefetch\.L2\.global(?:\.L2::cache_hint)?",
)
def _prefetch(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.address(i.operands[0])
    e.do("pass")
