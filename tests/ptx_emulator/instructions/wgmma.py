"""wgmma: issue by the warps of a warpgroup, in-order execution, register hazards."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.numeric import TO_F32, f2, f4, u2, u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.semantics import fragments
from ptx_emulator.semantics.matmul import multiply_accumulate
from ptx_emulator.warp import Warp

from .control import NOT_CONVERGED, all_lanes
from .operands import read_operand

WARPS = 4
M, K = 64, 16


@dataclass(frozen=True)
class Shape:
    """The static part of a wgmma.mma_async."""

    n: int
    out: str
    kind: str
    scale_a: int
    scale_b: int
    transpose_a: bool
    transpose_b: bool


@dataclass(frozen=True)
class Key:
    """What the four warps must agree on; `a` is None for A in registers."""

    sequence: int
    pc: int
    a: int | None
    b: int
    accumulate: bool
    shape: Shape


@dataclass
class MmaOp:
    """One operation of a warpgroup; it runs once its four warps have issued it.

    Attributes by warp index: `inputs` are accumulator values, or (earlier operation,
    result row) for registers in flight; `targets` maps registers to result rows.
    """

    key: Key
    warps: dict[int, Warp] = field(default_factory=dict)
    inputs: dict[int, list] = field(default_factory=dict)
    a_registers: dict[int, np.ndarray] = field(default_factory=dict)
    targets: dict[int, dict[int, int]] = field(default_factory=dict)
    results: dict[int, np.ndarray] = field(default_factory=dict)
    clocks: object = None


class Warpgroup:
    """The in-order queue of a warpgroup's matrix operations."""

    def __init__(self, cta, number: int):
        self.cta, self.number = cta, number
        self.ops: dict[int, MmaOp] = {}
        self.executed = 0
        machine = cta.launch.machine
        checker = machine.checker
        self.agent = checker.agent(cta.launch) if checker is not None else None
        machine.add_queue(self, cta.cluster)

    def ready(self) -> bool:
        op = self.ops.get(self.executed)
        return op is not None and len(op.warps) == WARPS

    def fire(self) -> None:
        op = self.ops.pop(self.executed)
        machine = self.cta.launch.machine
        machine.queued -= 1
        machine.firing = (op.warps[min(op.warps)], op.key.pc)
        _execute(machine, self.cta, op)
        self.executed += 1
        self.cta.cluster.wake()

    def describe(self) -> str:
        return f"wgmma queue of warpgroup {self.number}"


class WarpIssue:
    """What one warp has issued, fenced and committed."""

    def __init__(self, group: Warpgroup):
        self.group = group
        self.issued = 0
        self.fenced = False
        self.committed: list[int] = []


def _issue_state(w: Warp) -> WarpIssue:
    if w.wgmma is None:
        number, groups = w.index // WARPS, w.cta.warpgroups
        if number not in groups:
            groups[number] = Warpgroup(w.cta, number)
        w.wgmma = WarpIssue(groups[number])
    return w.wgmma


def _aligned(w: Warp, lanes: np.ndarray) -> bool:
    if w.exited.any() or len(w.cta.warps) < (w.index // WARPS + 1) * WARPS:
        raise EmulationError("wgmma", "the warpgroup does not have four full warps")
    return all_lanes(w, lanes)


@step(r"wgmma\.fence\.sync\.aligned")
def _fence(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not _aligned(w, lanes):
            return NOT_CONVERGED
        _issue_state(w).fenced = True
        w.unfenced.clear()
        return None

    return body


@step(r"wgmma\.commit_group\.sync\.aligned")
def _commit(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not _aligned(w, lanes):
            return NOT_CONVERGED
        state = _issue_state(w)
        state.committed.append(state.issued)
        return None

    return body


@step(r"wgmma\.wait_group\.sync\.aligned")
def _wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    allowed = int(i.operands[0], 0)

    def body(w: Warp, lanes: np.ndarray):
        if not _aligned(w, lanes):
            return NOT_CONVERGED
        state = _issue_state(w)
        if len(state.committed) <= allowed:
            return None
        upto = state.committed[-1 - allowed]
        if state.group.executed < upto:
            return f"{upto - state.group.executed} wgmma operations"
        for register, op in list(w.in_flight.items()):
            if isinstance(op, MmaOp) and op.key.sequence < upto:
                del w.in_flight[register]
        if w.machine.checker is not None:
            w.machine.checker.pipe_done(w, lanes, state.group.agent, upto)
        return None

    return body


def _shape(
    i: Instruction, m: re.Match, flags: list[int], a_in_registers: bool
) -> Shape:
    n, out, kind = int(m["n"]), m["out"], m["a"]
    types = m["a"] == m["b"] and (out == "f32" or kind == "f16")
    if not types or n % 8 or not 8 <= n <= 256:
        raise i.unsupported("types or shape of wgmma")
    scale_a, scale_b, *transposed = flags
    if a_in_registers:
        transposed = [0, *transposed]
    if not {scale_a, scale_b} <= {1, -1} or not {*transposed} <= {0, 1}:
        raise i.unsupported("scale or transpose immediates")
    return Shape(n, out, kind, scale_a, scale_b, *(bool(t) for t in transposed))


@step(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.(?P<out>f32|f16)"
    r"\.(?P<a>bf16|f16)\.(?P<b>bf16|f16)"
)
def _mma(e: Emitter, i: Instruction, m: re.Match):
    a_in_registers = i.operands[1].startswith("{")
    e.expect(7 if a_in_registers else 8)
    shape = _shape(i, m, [int(x, 0) for x in i.operands[4:]], a_in_registers)
    targets = [e.destination(x) for x in e.vector(i.operands[0])]
    if len(targets) != shape.n // (2 if shape.out == "f32" else 4):
        raise i.unsupported(f"{len(targets)} accumulator registers for n = {shape.n}")
    a_parts = e.vector(i.operands[1])
    if len(a_parts) != (4 if a_in_registers else 1):
        raise i.unsupported("registers of A")
    codes = e.compile(
        e.source(i.operands[2], "b64"),
        e.source(i.operands[3], "pred"),
        *(e.source(x, "b32" if a_in_registers else "b64") for x in a_parts),
    )
    fenced = {*targets, *(i.scope.register(x) for x in a_parts if a_in_registers)}

    def body(w: Warp, lanes: np.ndarray):
        if not _aligned(w, lanes):
            return NOT_CONVERGED
        b, accumulate, *a = codes(w)
        state = _issue_state(w)
        if w.unfenced & fenced or not state.fenced:
            what = "no wgmma.fence between the last register access and this operation"
            raise EmulationError("wgmma", what)
        uniform = [b, accumulate, *([] if a_in_registers else a)]
        if any((x != x[0]).any() for x in uniform):
            what = "descriptors or scale-d differ between the lanes"
            raise EmulationError("wgmma", what)
        a_descriptor = None if a_in_registers else int(a[0][0])
        key = Key(
            state.issued, i.pc, a_descriptor, int(b[0]), bool(accumulate[0]), shape
        )
        op = _join(state, key)
        if a_in_registers:
            op.a_registers[w.index] = np.stack([x.astype(u4) for x in a], 1)
        _issue(w, lanes, state, op, targets)
        return None

    return body


def _join(state: WarpIssue, key: Key) -> MmaOp:
    group = state.group
    op = group.ops.get(state.issued)
    if op is None:
        op = group.ops[state.issued] = MmaOp(key)
        group.cta.launch.machine.queued += 1
    if op.key != key:
        what = f"the warps of a warpgroup issue different operations: {key}, {op.key}"
        raise EmulationError("wgmma", what)
    return op


def _issue(w: Warp, lanes, state: WarpIssue, op: MmaOp, targets: list[int]) -> None:
    if op.key.accumulate:
        op.inputs[w.index] = [_input(w, r) for r in targets]
    op.targets[w.index] = {r: n for n, r in enumerate(targets)}
    op.warps[w.index] = w
    for r in targets:
        w.in_flight[r] = op
    state.issued += 1
    machine = w.machine
    if machine.checker is not None:
        op.clocks = machine.checker.issue_pipe(
            w, lanes, state.group.agent, state.issued, op.key.pc, op.clocks
        )
    machine.progress += 1
    machine.counters["wgmma"] += 1


def _input(w: Warp, register: int):
    op = w.in_flight.get(register)
    if isinstance(op, MmaOp):
        return op, op.targets[w.index][register]
    return w.R[register]


def _value(source, warp_index: int) -> np.ndarray:
    if isinstance(source, tuple):
        op, row = source
        return op.results[warp_index][row]
    return source


@lru_cache(maxsize=64)
def _layout(n: int, out: str) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every accumulator value, [128, values a thread]."""
    f32 = out == "f32"
    place = fragments.wgmma_accumulator if f32 else fragments.wgmma_accumulator_f16
    row, column = place(n)
    return row.reshape(128, -1), column.reshape(128, -1)


def _execute(machine, cta, op: MmaOp) -> None:
    shape, order = op.key.shape, sorted(op.warps)
    a = _operand_a(machine, cta, op, order)
    b = read_operand(
        machine, cta, op.clocks, op.key.b, shape.n, K, shape.transpose_b, shape.kind
    )
    row, column = _layout(shape.n, shape.out)
    d = None
    if op.key.accumulate:
        values = [np.stack([_value(x, k) for x in op.inputs[k]]).T for k in order]
        packed = np.ascontiguousarray(np.concatenate(values))
        d = np.empty((M, shape.n), f4)
        d[row, column] = packed.view(f4 if shape.out == "f32" else f2)
    a, b = a * f4(shape.scale_a), b * f4(shape.scale_b)
    total = multiply_accumulate(a, b, d, shape.out)[row, column]
    registers = (total if shape.out == "f32" else total.astype(f2)).view(u4)
    op.inputs.clear()
    for n, k in enumerate(order):
        _deliver(op, k, np.ascontiguousarray(registers[n * 32 : n * 32 + 32].T))


def _operand_a(machine, cta, op: MmaOp, order: list[int]) -> np.ndarray:
    shape = op.key.shape
    if op.key.a is not None:
        return read_operand(
            machine, cta, op.clocks, op.key.a, M, K, shape.transpose_a, shape.kind
        )
    row, column = fragments.wgmma_a_registers()
    halves = np.concatenate([op.a_registers[k] for k in order]).view(u2)
    a = np.zeros((M, K), f4)
    a[row, column] = TO_F32[shape.kind](halves.reshape(128, 4, 2))
    return a


def _deliver(op: MmaOp, warp_index: int, results: np.ndarray) -> None:
    op.results[warp_index] = results
    warp = op.warps[warp_index]
    for register, row in op.targets[warp_index].items():
        if warp.in_flight.get(register) is op:
            warp.R[register] = results[row]
