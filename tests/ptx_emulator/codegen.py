"""Turns instructions into Python source over 32-lane arrays, or into step functions.

`FORMS` is the table of all that the emulator knows: patterns for whole opcode
spellings. An *inline* form appends source lines to the Emitter, and a run of such
instructions becomes one Python function. A *step* form returns `body(warp, lanes)`,
executed on its own, so that the scheduler can switch warps around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from . import numeric
from .numeric import f2, f4, f8, i1, i2, i4, i8, u1, u2, u4, u8
from .ptx import TYPE_BYTES, Function, Instruction, split_operands

UNSIGNED_BY_BYTES = {0: "?", 1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "u8"}
VALUE_TYPE = {
    "pred": "?", "b8": "u1", "u8": "u1", "s8": "i1", "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
    "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "f16x2": "u4", "bf16x2": "u4", "b64": "u8", "u64": "u8",
    "s64": "i8", "f64": "f8", "b128": "u8",
}  # fmt: skip
NUMPY = {
    "u1": u1,
    "u2": u2,
    "u4": u4,
    "u8": u8,
    "i1": i1,
    "i2": i2,
    "i4": i4,
    "i8": i8,
    "f2": f2,
    "f4": f4,
    "f8": f8,
}

FORMS: list[tuple[re.Pattern, Callable, bool]] = []
_FOUND: dict[str, tuple[re.Pattern, Callable, bool] | None] = {}


def _register(pattern: str, handler: Callable, step: bool) -> None:
    FORMS.append((re.compile(pattern), handler, step))


def inline(*patterns: str):
    """Registers an emitter `f(e, i, m)` for opcodes that match one of the patterns."""

    def add(handler: Callable) -> Callable:
        for p in patterns:
            _register(p, handler, False)
        return handler

    return add


def step(*patterns: str):
    """Registers a factory `f(e, i, m) -> body(warp, lanes)` for such opcodes."""

    def add(handler: Callable) -> Callable:
        for p in patterns:
            _register(p, handler, True)
        return handler

    return add


def find_form(i: Instruction) -> tuple[Callable, re.Match, bool]:
    """The handler of an opcode spelling, its match, and whether it is a step."""
    if i.opcode not in _FOUND:
        _FOUND[i.opcode] = next((f for f in FORMS if f[0].fullmatch(i.opcode)), None)
    found = _FOUND[i.opcode]
    if found is None:
        raise i.unsupported()
    pattern, handler, is_step = found
    return handler, pattern.fullmatch(i.opcode), is_step


_FLOAT32 = re.compile(r"0[fF][0-9a-fA-F]{8}$")
_FLOAT64 = re.compile(r"0[dD][0-9a-fA-F]{16}$")
_INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_ADDRESS = re.compile(r"([%\w$.]+)\s*(?:\+\s*(-?\w+))?$")
_VECTOR_SPECIALS = {
    "tid", "ctaid", "nctaid", "ntid", "cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid",
}  # fmt: skip
_CTA_SPECIALS = {
    "cluster_ctarank", "cluster_nctarank", "smid", "nsmid", "dynamic_smem_size", "total_smem_size", "gridid",
    "is_explicit_cluster", "aggr_smem_size", "nwarpid",
}  # fmt: skip


class Emitter:
    """Source of one instruction at a time; operands are expressions over registers `R`."""

    def __init__(self, function: Function, symbols: dict[str, tuple[str, int]]):
        self.function = function
        self.symbols = symbols
        self.environment = dict(
            NUMPY,
            np=np,
            where=np.where,
            N=numeric,
            LANE=np.arange(32, dtype=u4),
            full=full,
            any_lane=np.count_nonzero,
        )
        self._constants: dict[tuple, str] = {}
        self.begin(None)

    def begin(self, instruction: Instruction | None) -> None:
        self.instruction = instruction
        self.lines: list[tuple[int | None, str]] = []
        self.reads: list[int] = []
        self.writes: list[int] = []

    def constant(self, value) -> str:
        key = (type(value), value.tobytes() if hasattr(value, "tobytes") else value)
        name = self._constants.get(key)
        if name is None:
            name = self._constants[key] = f"c{len(self._constants)}"
            self.environment[name] = value
        return name

    def immediate(self, text: str, kind: str) -> str:
        name = VALUE_TYPE[kind]
        if kind == "pred":
            return self.constant(np.bool_(int(text.rstrip("U"), 0) != 0))
        dtype = NUMPY[name]
        if _FLOAT32.match(text):
            bits = np.array([int(text[2:], 16)], u4)
            if dtype is f8:
                return self.constant(f8(bits.view(f4)[0]))
            return self.constant(
                bits.view(dtype)[0] if dtype(0).nbytes == 4 else dtype(bits.view(f4)[0])
            )
        if _FLOAT64.match(text):
            bits = np.array([int(text[2:], 16)], u8)
            return self.constant(
                bits.view(dtype)[0] if dtype(0).nbytes == 8 else dtype(bits.view(f8)[0])
            )
        if dtype in (f2, f4, f8):
            raise self.instruction.unsupported(
                f"integer immediate {text} in a float operand"
            )
        size = dtype(0).nbytes
        value = int(text.rstrip("U"), 0) & ((1 << 8 * size) - 1)
        return self.constant(np.array([value], f"u{size}").view(dtype)[0])

    def special(self, text: str) -> str | None:
        name, _, part = text[1:].partition(".")
        if name == "tid":
            return f"w.tid[{'xyz'.index(part)}]"
        if name in _VECTOR_SPECIALS:
            return f"w.cta.special[{name!r}][{'xyz'.index(part)}]"
        if name in _CTA_SPECIALS:
            return f"w.cta.special[{name!r}]"
        fixed = {
            "laneid": "LANE",
            "warpid": "u4(w.index)",
            "lanemask_lt": "((u4(1) << LANE) - u4(1))",
            "lanemask_le": "((u4(2) << LANE) - u4(1))",
            "lanemask_eq": "(u4(1) << LANE)",
            "lanemask_ge": "(~((u4(1) << LANE) - u4(1)))",
            "lanemask_gt": "(~((u4(2) << LANE) - u4(1)))",
            "clock": "u4(w.read_clock() & 0xffffffff)",
            "clock64": "u8(w.read_clock())",
            "globaltimer": "u8(w.read_clock())",
            "globaltimer_lo": "u4(w.read_clock() & 0xffffffff)",
        }
        return fixed.get(name)

    def source(self, text: str, kind: str) -> str:
        """Expression of a value: a [32] array, or a numpy scalar that all lanes share."""
        negated = text.startswith("!")
        register = self.instruction.scope.register(text[1:] if negated else text)
        if register is not None:
            self.reads.append(register)
            size = self.function.register_bytes[register]
            base = f"R[{register}]"
            if kind == "pred":
                if size:
                    raise self.instruction.unsupported(f"{text} is not a predicate")
                return f"~{base}" if negated else base
            if negated or not size:
                raise self.instruction.unsupported(f"operand {text} as .{kind}")
            if size == 16 or kind == "b128":
                if size != TYPE_BYTES[kind]:
                    raise self.instruction.unsupported(f"operand {text} as .{kind}")
                return base
            if TYPE_BYTES[kind] > size:
                raise self.instruction.unsupported(
                    f"register {text} is narrower than .{kind}"
                )
            if TYPE_BYTES[kind] < size:
                base = f"{base}.astype({UNSIGNED_BY_BYTES[TYPE_BYTES[kind]]})"
            name = VALUE_TYPE[kind]
            return base if name[0] == "u" else f"{base}.view({name})"
        if text.startswith("%"):
            found = self.special(text)
            if found is None:
                raise self.instruction.unsupported(f"special register {text}")
            return (
                f"({found}).view({VALUE_TYPE[kind]})"
                if VALUE_TYPE[kind][0] == "i"
                else found
            )
        if _FLOAT32.match(text) or _FLOAT64.match(text) or _INTEGER.match(text):
            return self.immediate(text, kind)
        if text == "WARP_SZ":
            return self.constant(u4(32))
        return self.symbol(text, "u8" if TYPE_BYTES[kind] == 8 else "u4")

    def symbol(self, text: str, dtype: str) -> str:
        m = _ADDRESS.match(text)
        if not m or m[1] not in self.symbols:
            raise self.instruction.unsupported(f"operand {text}")
        space, value = self.symbols[m[1]]
        value += int(m[2], 0) if m[2] else 0
        if space == "shared":
            return f"{dtype}(w.cta.shared_base + {value})"
        if space == "global":
            return f"{dtype}(w.cta.launch.globals[{m[1]!r}] + {value - self.symbols[m[1]][1]})"
        return self.constant(NUMPY[dtype](value))

    def destination(self, text: str) -> int | None:
        if text == "_":
            return None
        register = self.instruction.scope.register(text)
        if register is None:
            raise self.instruction.unsupported(f"destination {text}")
        self.writes.append(register)
        return register

    def address(self, text: str) -> str:
        """Expression of `[register, symbol or number + offset]`: i64, array or scalar."""
        m = (
            _ADDRESS.match(text[1:-1].strip())
            if text.startswith("[") and text.endswith("]")
            else None
        )
        if not m:
            raise self.instruction.unsupported(f"address operand {text}")
        base, offset = m[1], int(m[2] or "0", 0)
        register = self.instruction.scope.register(base)
        if register is not None:
            self.reads.append(register)
            if self.function.register_bytes[register] not in (4, 8):
                raise self.instruction.unsupported(f"address operand {text}")
            code = f"R[{register}].astype(i8)"
            return f"({code} + {offset})" if offset else code
        if _INTEGER.match(base):
            return self.constant(i8(int(base, 0) + offset))
        return (
            f"i8({self.symbol(base, 'u8')} + u8({offset}))"
            if offset >= 0
            else f"(i8({self.symbol(base, 'u8')}) + {offset})"
        )

    def set(self, register: int | None, code: str, kind: str) -> None:
        """Assigns a value of type `kind`, extended to a wider register by its sign."""
        if register is None:
            return
        size = self.function.register_bytes[register]
        name = VALUE_TYPE[kind]
        if kind == "pred" or size == 0:
            if size or kind != "pred":
                raise self.instruction.unsupported("predicate and value register mixed")
            self.lines.append((register, f"full({code}, np.bool_)"))
            return
        if TYPE_BYTES[kind] > size:
            raise self.instruction.unsupported(f"destination is narrower than .{kind}")
        if size == 16:
            self.lines.append((register, code))
            return
        storage = UNSIGNED_BY_BYTES[size]
        if size > TYPE_BYTES[kind]:
            code = (
                f"({code}).astype(i{size}).view({storage})"
                if name[0] == "i"
                else f"({code}).view(u{TYPE_BYTES[kind]}).astype({storage})"
            )
        elif name != storage:
            code = f"({code}).view({storage})"
        self.lines.append((register, f"full({code}, {storage})"))

    def do(self, code: str) -> None:
        """A statement; the token ACT becomes the mask of active lanes, or None when all are."""
        self.lines.append((None, code))

    def vector(self, text: str) -> list[str]:
        return split_operands(text[1:-1]) if text.startswith("{") else [text]

    def compile(self, *codes: str) -> Callable:
        """A function of the warp: the tuple of these expressions, each of 32 lanes."""
        body = ", ".join(f"lanes32({c})" for c in codes)
        self.environment["lanes32"] = lanes32
        return eval(f"lambda w: (lambda R: ({body},))(w.R)", self.environment)

    def expect(self, *counts: int) -> None:
        if len(self.instruction.operands) not in counts:
            raise self.instruction.unsupported(
                f"{len(self.instruction.operands)} operands"
            )


def full(x, dtype):
    """A fresh register value: 32 lanes of `dtype`."""
    x = np.asarray(x)
    if x.ndim == 0 or x.shape[0] != 32:
        return np.full(32, x, dtype)
    return x if x.dtype == dtype else x.astype(dtype)


def lanes32(x):
    x = np.asarray(x)
    return x if x.ndim else np.full(32, x)
