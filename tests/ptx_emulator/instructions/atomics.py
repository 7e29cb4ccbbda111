"""atom and red on global and shared memory."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.memory import UNSIGNED
from ptx_emulator.numeric import REDUCTION_DTYPES, reduce_pair, u4
from ptx_emulator.ptx import TYPE_BYTES, Instruction
from ptx_emulator.warp import Warp

from .loads_stores import SCOPE, SPACE, TYPE, space_of

FORM = (
    r"(?:\.(?P<sem>relaxed|acquire|release|acq_rel))?(?:"
    + SCOPE
    + ")?"
    + SPACE
    + r"\.(?P<op>add|inc|dec|min|max|and|or|xor|exch|cas)(?:\.noftz)?"
    + r"(?P<hint>\.L2::cache_hint)?"
    + TYPE
)
INTEGERS = {"u32", "s32", "u64", "s64"}
BITS = {"b32", "b64"}
ALLOWED = {
    "add": {"u32", "s32", "u64", "f32", "f64", "f16x2", "bf16x2", "f16", "bf16"},
    "min": INTEGERS, "max": INTEGERS, "inc": {"u32"}, "dec": {"u32"},
    "and": BITS, "or": BITS, "xor": BITS, "exch": BITS, "cas": BITS | {"b16"},
}  # fmt: skip


def _update(
    op: str, kind: str, old: np.ndarray, operands: list[np.ndarray]
) -> np.ndarray:
    """New value of one location; arrays have one element of the unsigned type."""
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


@step(rf"atom{FORM}", rf"red{FORM}")
def _atomic(e: Emitter, i: Instruction, m: re.Match):
    op, kind, returns = m["op"], m["t"], i.mnemonic == "atom"
    operands = list(i.operands[1:] if returns else i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    vector = any(o.startswith("{") for o in operands)
    if kind not in ALLOWED[op] or len(operands) != (3 if op == "cas" else 2) or vector:
        raise i.unsupported(f"atomic {op} on .{kind}")
    target = e.destination(i.operands[0]) if returns else None
    size = TYPE_BYTES[kind]
    sources = (e.source(o, f"b{8 * size}") for o in operands[1:])
    codes = e.compile(e.address(operands[0]), *sources)
    space, sem, scope = space_of(m), m["sem"] or "relaxed", m["scope"] or "gpu"

    def body(w: Warp, lanes: np.ndarray):
        address, *values = codes(w)
        values = [v.astype(UNSIGNED[size]) for v in values]
        out = np.zeros(32, UNSIGNED[size])
        for lane in np.nonzero(lanes)[0]:
            only = np.array([lane])
            (part,) = w.resolve(space, address[only], size, only)
            if part.path is None:
                raise EmulationError("bounds", "atomic on local or parameter memory")
            w.strong(only, part, size, "update", sem, scope, i.pc)
            old = part.memory.read(part.offsets, size, 1, w.machine.strict)[:, 0]
            new = _update(op, kind, old, [v[only] for v in values])
            w.write(part, new.reshape(1, 1))
            out[lane] = old[0]
        w.set(target, out, lanes)

    return body
