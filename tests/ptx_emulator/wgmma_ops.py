"""wgmma: issue by the four warps of a warpgroup, in-order asynchronous execution, register hazards."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from .codegen import Emitter, step
from .control_ops import NOT_CONVERGED
from .errors import EmulationError
from .memory import Bytes
from .numeric import TO_F32, f4, u2, u4
from .ptx import Instruction
from .semantics import descriptors, fragments
from .semantics.matmul import multiply_accumulate
from .warp import Warp

WARPS = 4
K = 16


@lru_cache(maxsize=4096)
def decode(descriptor: int, architecture: str) -> descriptors.SharedDescriptor:
    function = (
        descriptors.decode_wgmma_descriptor
        if architecture == "sm_90a"
        else descriptors.decode_tcgen05_descriptor
    )
    try:
        return function(descriptor)
    except ValueError as error:
        raise EmulationError("descriptor", str(error)) from None


@lru_cache(maxsize=4096)
def _addresses(desc, rows: int, k: int, mn_major: bool) -> np.ndarray:
    try:
        addresses = descriptors.operand_addresses(desc, rows, k, 2, mn_major)
    except ValueError as error:
        raise EmulationError("descriptor", str(error)) from None
    addresses.flags.writeable = False
    return addresses


def operand_addresses(
    descriptor: int, architecture: str, rows: int, k: int, mn_major: bool
) -> np.ndarray:
    """[rows, k] shared byte addresses of 16-bit elements."""
    return _addresses(decode(descriptor, architecture), rows, k, mn_major)


@lru_cache(maxsize=4096)
def _chunks(
    descriptor: int, architecture: str, rows: int, k: int, mn_major: bool
) -> np.ndarray:
    return np.unique(
        operand_addresses(descriptor, architecture, rows, k, mn_major) & ~np.int64(15)
    )


def read_operand(
    machine, cta, op, descriptor: int, rows: int, k: int, mn_major: bool, kind: str
) -> np.ndarray:
    """f32[rows, k] of a shared-memory operand; checks bounds, poison and ordering."""
    addresses = operand_addresses(descriptor, machine.architecture, rows, k, mn_major)
    chunks = _chunks(descriptor, machine.architecture, rows, k, mn_major)
    cta.check_shared(int(chunks[0]), 16)
    cta.check_shared(int(chunks[-1]), 16)
    if op is not None:
        machine.checker.async_access(op, cta.shared, chunks, 16, False)
    return _gather(cta.shared, addresses, kind, machine.strict)


def _gather(
    shared: Bytes, addresses: np.ndarray, kind: str, strict: bool
) -> np.ndarray:
    data, valid, good = shared.view(2, 1)
    index = addresses >> 1
    if strict and not (valid[index, 0] == good).all():
        raise EmulationError(
            "poison", f"matrix operand reads bytes never written of {shared.label}"
        )
    return TO_F32[kind](data[index, 0])


class MmaOp:
    """One wgmma.mma_async of a warpgroup; it can run when its four warps have issued it."""

    def __init__(self, key: tuple, n: int, out: str):
        self.key, self.n, self.out = key, n, out
        self.inputs: dict[int, object] = {}
        self.a_registers: dict[int, np.ndarray] = {}
        self.targets: dict[int, dict[int, int]] = {}
        self.results: dict[int, np.ndarray] = {}
        self.warps: dict[int, Warp] = {}
        self.clocks = None
        self.done = False


class Warpgroup:
    """The in-order queue of a warpgroup's matrix operations."""

    def __init__(self, cta, number: int):
        self.cta, self.number = cta, number
        self.ops: list[MmaOp] = []
        self.executed = 0
        machine = cta.launch.machine
        self.agent = (
            machine.checker.agent(cta.launch) if machine.checker is not None else None
        )

    def ready(self) -> bool:
        return (
            self.executed < len(self.ops)
            and len(self.ops[self.executed].warps) == WARPS
        )

    def fire(self) -> None:
        op = self.ops[self.executed]
        _execute(self, op)
        self.executed += 1
        op.done = True
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
        number = w.index // WARPS
        groups = w.cta.__dict__.setdefault("warpgroups", {})
        if number not in groups:
            groups[number] = Warpgroup(w.cta, number)
            w.machine.add_queue(groups[number], w.cta.cluster)
        w.wgmma = WarpIssue(groups[number])
    return w.wgmma


def _aligned(w: Warp, lanes: np.ndarray) -> bool:
    if w.exited.any() or len(w.cta.warps) < (w.index // WARPS + 1) * WARPS:
        raise EmulationError("wgmma", "the warpgroup does not have four full warps")
    return w.converged(lanes, 0xFFFFFFFF)


@step(r"wgmma\.fence\.sync\.aligned")
def _fence(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not _aligned(w, lanes):
            return NOT_CONVERGED
        _issue_state(w).fenced = True
        w.dirty_registers.clear()
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
        for register, op in list(w.pending_registers.items()):
            if isinstance(op, MmaOp) and op.key[0] < upto:
                del w.pending_registers[register]
        if w.machine.checker is not None:
            w.machine.checker.pipe_done(w, lanes, state.group.agent, upto)
        return None

    return body


@step(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(?P<n>\d+)k16\.(?P<out>f32|f16)\.(?P<a>bf16|f16)\.(?P<b>bf16|f16)",
)
def _mma(e: Emitter, i: Instruction, m: re.Match):
    n, out, kind = int(m["n"]), m["out"], m["a"]
    if (
        m["a"] != m["b"]
        or (out == "f16" and kind == "bf16")
        or n % 8
        or not 8 <= n <= 256
    ):
        raise i.unsupported("types or shape of wgmma")
    a_in_registers = i.operands[1].startswith("{")
    e.expect(7 if a_in_registers else 8)
    targets = [e.destination(x) for x in e.vector(i.operands[0])]
    if len(targets) != (n // 2 if out == "f32" else n // 4):
        raise i.unsupported(f"{len(targets)} accumulator registers for n = {n}")
    a_codes = (
        [e.source(x, "b32") for x in e.vector(i.operands[1])]
        if a_in_registers
        else [e.source(i.operands[1], "b64")]
    )
    if a_in_registers and len(a_codes) != 4:
        raise i.unsupported("A registers")
    codes = e.compile(
        e.source(i.operands[2], "b64"), e.source(i.operands[3], "pred"), *a_codes
    )
    flags = [int(x, 0) for x in i.operands[4:]]
    scale_a, scale_b = flags[:2]
    transpose_a, transpose_b = (0, flags[2]) if a_in_registers else (flags[2], flags[3])
    if (
        abs(scale_a) != 1
        or abs(scale_b) != 1
        or transpose_a not in (0, 1)
        or transpose_b not in (0, 1)
    ):
        raise i.unsupported("scale or transpose immediates")
    a_text_registers = (
        [e.instruction.scope.register(x) for x in e.vector(i.operands[1])]
        if a_in_registers
        else []
    )
    shape = (kind, scale_a, scale_b, transpose_a, transpose_b)

    def body(w: Warp, lanes: np.ndarray):
        if not _aligned(w, lanes):
            return NOT_CONVERGED
        b, scale_d, *a = codes(w)
        state = _issue_state(w)
        dirty = w.dirty_registers.intersection((*targets, *a_text_registers))
        if dirty or not state.fenced:
            raise EmulationError(
                "wgmma",
                "no wgmma.fence between the last register access and this wgmma.mma_async",
            )
        if (
            (b != b[0]).any()
            or (scale_d != scale_d[0]).any()
            or (not a_in_registers and (a[0] != a[0][0]).any())
        ):
            raise EmulationError(
                "wgmma", "descriptors or scale-d differ between the lanes"
            )
        a_desc = None if a_in_registers else int(a[0][0])
        key = (state.issued, i.pc, a_desc, int(b[0]), bool(scale_d[0]), shape)
        op = _join(state, key, n, out)
        op.inputs[w.index] = _inputs(w, targets) if scale_d[0] else None
        if a_in_registers:
            op.a_registers[w.index] = np.stack([x.astype(u4) for x in a], 1)
        op.targets[w.index] = {r: j for j, r in enumerate(targets)}
        op.warps[w.index] = w
        for r in targets:
            w.pending_registers[r] = op
        state.issued += 1
        if w.machine.checker is not None:
            op.clocks = w.machine.checker.issue_pipe(
                w, lanes, state.group.agent, state.issued, i.pc, op.clocks
            )
        w.machine.progress += 1
        w.machine.counters["wgmma"] += 1
        return None

    return body


def _join(state: WarpIssue, key: tuple, n: int, out: str) -> MmaOp:
    ops = state.group.ops
    if state.issued == len(ops):
        ops.append(MmaOp(key, n, out))
    elif ops[state.issued].key != key:
        raise EmulationError(
            "wgmma",
            f"the warps of a warpgroup issue different operations: {key}, {ops[state.issued].key}",
        )
    return ops[state.issued]


def _inputs(w: Warp, targets: list[int]):
    """Accumulator inputs: values, or the earlier operation and its result columns for registers in flight."""
    sources = []
    for r in targets:
        pending = w.pending_registers.get(r)
        sources.append(
            (pending, pending.targets[w.index][r])
            if isinstance(pending, MmaOp)
            else w.R[r]
        )
    return sources


def _collect(sources, warp_index: int) -> np.ndarray:
    return np.stack(
        [s[0].results[warp_index][s[1]] if isinstance(s, tuple) else s for s in sources]
    )


@lru_cache(maxsize=64)
def _layout(n: int, out: str):
    row, column = (
        fragments.wgmma_accumulator(n)
        if out == "f32"
        else fragments.wgmma_accumulator_f16(n)
    )
    return row.reshape(128, -1), column.reshape(128, -1)


def _execute(group: Warpgroup, op: MmaOp) -> None:
    machine, cta = group.cta.launch.machine, group.cta
    (
        _,
        _,
        a_desc,
        b_desc,
        scale_d,
        (kind, scale_a, scale_b, transpose_a, transpose_b),
    ) = op.key
    order = sorted(op.warps)
    if a_desc is None:
        row, column = fragments.wgmma_a_registers()
        halves = (
            np.concatenate([op.a_registers[k] for k in order])
            .view(u2)
            .reshape(128, 4, 2)
        )
        a = np.zeros((64, K), f4)
        a[row, column] = TO_F32[kind](halves)
    else:
        a = read_operand(
            machine, cta, op.clocks, a_desc, 64, K, bool(transpose_a), kind
        )
    b = read_operand(machine, cta, op.clocks, b_desc, op.n, K, bool(transpose_b), kind)
    row, column = _layout(op.n, op.out)
    d = None
    if scale_d:
        registers = np.concatenate([_collect(op.inputs[k], k).T for k in order])
        values = (
            registers.view(f4)
            if op.out == "f32"
            else np.ascontiguousarray(registers).view(np.float16).astype(f4)
        )
        d = np.empty((64, op.n), f4)
        d[row, column] = values
    total = multiply_accumulate(a * f4(scale_a), b * f4(scale_b), d, op.out)
    values = total[row, column]
    registers = (
        values.view(u4) if op.out == "f32" else values.astype(np.float16).view(u4)
    )
    for position, k in enumerate(order):
        mine = np.ascontiguousarray(registers[position * 32 : position * 32 + 32].T)
        op.results[k] = mine
        warp = op.warps[k]
        for r, j in op.targets[k].items():
            if warp.pending_registers.get(r) is op:
                warp.R[r] = mine[j]
    op.inputs.clear()
