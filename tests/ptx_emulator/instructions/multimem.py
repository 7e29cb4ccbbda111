"""multimem: loads that reduce, stores and reductions on every rank's replica."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.memory import UNSIGNED
from ptx_emulator.numeric import REDUCTION_DTYPES, reduce_pair, reduce_replicas
from ptx_emulator.ptx import TYPE_BYTES, Instruction
from ptx_emulator.warp import MULTICAST, Part, Warp

from .loads_stores import SCOPE, VECTOR

ORDER = (
    r"(?:\.(?P<weak>weak)|\.(?P<sem>relaxed|acquire|release)"
    + SCOPE
    + r")?(?:\.global)?"
)
OP = r"\.(?P<op>add|min|max|and|or|xor)"
TYPE = r"\.(?P<t>u32|s32|u64|s64|b32|b64|f32|f64|f16|f16x2|bf16|bf16x2)"


def _shape(i: Instruction, m: re.Match, parts: list[str]) -> tuple[int, int]:
    """Bytes of an element and elements of the access; refuses what PTX does not have."""
    kind = m["t"]
    element, count = TYPE_BYTES[kind], int(m["vec"] or 1)
    vector_only, vector_types = (
        kind in ("f16", "bf16"),
        kind[0] == "f" or "bf16" in kind,
    )
    if (
        len(parts) != count
        or element * count > 16
        or (vector_only and not m["vec"])
        or (m["vec"] and not vector_types)
    ):
        raise i.unsupported("type or vector of a multimem access")
    return element, count


def _replicas(w: Warp, address: np.ndarray, size: int) -> list[list[Part]]:
    """Per range of lanes, the replica of each rank; multicast addresses only."""
    if (address % size).any():
        raise EmulationError("alignment", f"multimem address of a {size}-byte access")
    space, rank = w.machine.space, w.cta.launch.rank
    low, high = int(address.min()), int(address.max())
    window = space.find(rank, low)
    if high + size <= window.end:
        ranges = [(window, address - window.base, slice(None))]
    else:
        ranges = []
        for n in range(address.size):
            window, offset = space.contiguous(rank, int(address[n]), size)
            ranges.append((window, np.array([offset]), np.array([n])))
    for window, _, _ in ranges:
        if not window.multicast:
            label = window.replicas[0].label
            raise EmulationError(
                "multicast", f"multimem on the unicast address of {label}"
            )
    return [
        [Part(memory, offsets, chosen, MULTICAST) for memory in window.replicas]
        for window, offsets, chosen in ranges
    ]


@step(rf"multimem\.ld_reduce{ORDER}{OP}(?P<acc>\.acc::f32)?{VECTOR}{TYPE}")
def _load_reduce(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    parts = e.vector(i.operands[0])
    element, count = _shape(i, m, parts)
    kind, op, wide, sem, scope = m["t"], m["op"], bool(m["acc"]), m["sem"], m["scope"]
    if sem == "release" or (wide and (op != "add" or kind not in ("f16x2", "bf16x2"))):
        raise i.unsupported("form of multimem.ld_reduce")
    registers = [e.destination(p) for p in parts]
    address = e.compile(e.address(i.operands[1]))
    size, dtype = element * count, REDUCTION_DTYPES[kind]

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        values = np.zeros((32, count), UNSIGNED[element])
        for replicas in _replicas(w, address(w)[0][chosen], size):
            loaded = []
            for part in replicas:
                w.weak(chosen, part, size, False, i.pc)
                if sem == "acquire":
                    w.strong(chosen, part, size, "read", sem, scope, i.pc)
                raw = part.memory.read(part.offsets, element, count, w.machine.strict)
                loaded.append(np.ascontiguousarray(raw).view(dtype))
            total = np.ascontiguousarray(reduce_replicas(op, kind, wide, loaded))
            values[chosen[part.chosen]] = total.view(UNSIGNED[element])
        w.machine.counters["multimem.ld_reduce"] += 1
        for n, register in enumerate(registers):
            w.set(register, values[:, n], lanes)

    return body


@step(rf"multimem\.st{ORDER}{VECTOR}{TYPE}")
def _store(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    parts = e.vector(i.operands[1])
    element, count = _shape(i, m, parts)
    sem, scope, size = m["sem"], m["scope"], element * count
    if sem == "acquire":
        raise i.unsupported("form of multimem.st")
    sources = (e.source(p, f"b{8 * element}") for p in parts)
    codes = e.compile(e.address(i.operands[0]), *sources)

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        address, *values = codes(w)
        data = np.stack([v.astype(UNSIGNED[element])[chosen] for v in values], 1)
        for replicas in _replicas(w, address[chosen], size):
            for part in replicas:
                if sem == "release":
                    w.strong(chosen, part, size, "write", sem, scope, i.pc)
                else:
                    w.weak(chosen, part, size, True, i.pc)
                w.write(part, data[part.chosen])
        w.machine.counters["multimem.st"] += 1

    return body


@step(rf"multimem\.red{ORDER}{OP}{VECTOR}{TYPE}")
def _reduce(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    parts = e.vector(i.operands[1])
    element, count = _shape(i, m, parts)
    if m["weak"] or m["sem"] == "acquire":
        raise i.unsupported("form of multimem.red")
    sources = (e.source(p, f"b{8 * element}") for p in parts)
    codes = e.compile(e.address(i.operands[0]), *sources)
    sem, scope = m["sem"] or "relaxed", m["scope"] or "sys"
    op, kind, dtype, size = m["op"], m["t"], REDUCTION_DTYPES[m["t"]], element * count

    def body(w: Warp, lanes: np.ndarray):
        address, *values = codes(w)
        for lane in np.nonzero(lanes)[0]:
            only = np.array([lane])
            data = np.array([[v[lane] for v in values]], UNSIGNED[element])
            for part in _replicas(w, address[only], size)[0]:
                w.strong(only, part, size, "update", sem, scope, i.pc)
                raw = part.memory.read(part.offsets, element, count, w.machine.strict)
                old = np.ascontiguousarray(raw).view(dtype)
                new = reduce_pair(op, kind, old, data.view(dtype))
                w.write(part, new.view(UNSIGNED[element]))
        w.machine.counters["multimem.red"] += 1

    return body
