"""tcgen05: tensor-memory allocation, MMA issue and commit, loads and stores, waits and fences."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

import numpy as np

from . import mbarrier
from .codegen import Emitter, step
from .control_ops import NOT_CONVERGED
from .errors import EmulationError
from .numeric import f4, u4
from .ptx import Instruction
from .semantics import descriptors, tmem
from .semantics.matmul import multiply_accumulate
from .warp import Warp
from .wgmma_ops import read_operand

GROUP = r"\.cta_group::(?P<group>[12])"


def _all_lanes(w: Warp, lanes: np.ndarray) -> bool:
    return w.converged(lanes, 0xFFFFFFFF)


def _pair(w: Warp, group: int) -> list:
    """The CTAs that an operation of this cta_group works on, the even one first."""
    if group == 1:
        return [w.cta]
    ctas, rank = w.cta.cluster.ctas, w.cta.rank
    if rank | 1 >= len(ctas):
        raise EmulationError(
            "tensor-memory", f"cta_group::2 in a cluster of {len(ctas)}"
        )
    return [ctas[rank & ~1], ctas[rank | 1]]


def _check_group(w: Warp, group: int) -> None:
    seen = w.cta.cluster.__dict__.setdefault("cta_group", group)
    if seen != group:
        raise EmulationError(
            "tensor-memory", f"cta_group::{group} after cta_group::{seen} in one kernel"
        )


# Allocation ----------------------------------------------------------------------------------------------------------


@step(rf"tcgen05\.alloc{GROUP}\.sync\.aligned(?:\.shared::cta)?\.b32")
def _alloc(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.address(i.operands[0]), e.source(i.operands[1], "u32"))
    group = int(m["group"])

    def body(w: Warp, lanes: np.ndarray):
        if not _all_lanes(w, lanes):
            return NOT_CONVERGED
        address, columns = codes(w)
        count = int(columns[0])
        if count not in (32, 64, 128, 256, 512):
            raise EmulationError(
                "tensor-memory",
                f"alloc of {count} columns, expected a power of two from 32 to 512",
            )
        _check_group(w, group)
        if not w.cta.tensor.permit:
            raise EmulationError("tensor-memory", "alloc after relinquish_alloc_permit")
        granted = w.cta.__dict__.setdefault("granted", {})
        if w.index not in granted:
            wait = _request(w, group, count, granted)
            if wait:
                return wait
        column = granted.pop(w.index)
        if count != w.cta.tensor.allocations[column]:
            raise EmulationError(
                "tensor-memory", "the CTAs of a pair allocate different sizes"
            )
        if "shared" in i.opcode or int(address[0]) < 1 << 28:
            w.store(
                "shared", address, [np.full(32, column, u4)], np.arange(32) == 0, i.pc
            )
        else:
            w.store(
                "generic", address, [np.full(32, column, u4)], np.arange(32) == 0, i.pc
            )
        return None

    return body


def _request(w: Warp, group: int, count: int, granted: dict) -> str | None:
    ctas = _pair(w, group)
    requests = ctas[0].__dict__.setdefault("tensor_requests", {})
    requests[w.cta.rank] = w
    if any(c.rank not in requests for c in ctas):
        return f"tcgen05.alloc of {count} columns by the other CTA of the pair"
    starts = [c.tensor.fits(count) for c in ctas]
    if None in starts:
        return f"{count} free tensor-memory columns (allocated: {[c.tensor.allocations for c in ctas]})"
    start = max(starts)
    for c in ctas:
        c.tensor.allocate(start, count)
        other = requests.pop(c.rank)
        other.cta.__dict__.setdefault("granted", {})[other.index] = start
    w.machine.progress += 1
    w.cta.cluster.wake()
    return None


@step(rf"tcgen05\.dealloc{GROUP}\.sync\.aligned\.b32")
def _dealloc(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.source(i.operands[0], "b32"), e.source(i.operands[1], "u32"))
    group = int(m["group"])

    def body(w: Warp, lanes: np.ndarray):
        if not _all_lanes(w, lanes):
            return NOT_CONVERGED
        address, columns = codes(w)
        _check_group(w, group)
        start, count = int(address[0]), int(columns[0])
        if w.machine.checker is not None and start in w.cta.tensor.allocations:
            w.machine.checker.tensor(
                w,
                w.cta.tensor,
                np.arange(8),
                np.arange(start, start + count),
                True,
                i.pc,
                False,
            )
        w.cta.tensor.free(start, count)
        w.machine.progress += 1
        w.cta.cluster.wake()
        return None

    return body


@step(rf"tcgen05\.relinquish_alloc_permit{GROUP}\.sync\.aligned")
def _relinquish(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not _all_lanes(w, lanes):
            return NOT_CONVERGED
        w.cta.tensor.permit = False
        return None

    return body


# MMA and commit ------------------------------------------------------------------------------------------------------


class TensorQueue:
    """The tcgen05 operations of one thread, executed in order."""

    def __init__(self, w: Warp, lane: int):
        self.w, self.lane = w, lane
        self.items: deque = deque()
        self.issued = 0
        self.agent = (
            w.machine.checker.agent(w.cta.launch)
            if w.machine.checker is not None
            else None
        )
        w.machine.add_queue(self, w.cta.cluster)

    def ready(self) -> bool:
        return bool(self.items)

    def fire(self) -> None:
        item, pc = self.items.popleft()
        self.w.machine.firing = (self.w, pc)
        item()

    def describe(self) -> str:
        return f"tcgen05 queue of {self.w.name} lane {self.lane}"


def _queue(w: Warp, lane: int) -> TensorQueue:
    queues = w.__dict__.setdefault("tensor_queues", {})
    if lane not in queues:
        queues[lane] = TensorQueue(w, lane)
    return queues[lane]


@lru_cache(maxsize=1024)
def _decode_instruction(word: int, group: int) -> descriptors.InstructionDescriptor:
    try:
        return descriptors.decode_instruction_descriptor(word, "f16", group)
    except ValueError as error:
        raise EmulationError("descriptor", str(error)) from None


@lru_cache(maxsize=64)
def _layout(m: int, n: int, group: int, start: int):
    """Per CTA of the pair: rows and columns of D it holds, their lanes and tensor columns, its 16-lane stripes."""
    try:
        cta, lane, column = tmem.accumulator_layout(m, n, group, start)
    except ValueError as error:
        raise EmulationError("tensor-memory", str(error)) from None
    parts = []
    for c in range(group):
        rows, columns = np.nonzero(cta == c)
        lanes = lane[rows, columns]
        parts.append(
            (rows, columns, lanes, column[rows, columns], np.unique(lanes // 16))
        )
    return parts


@step(
    rf"tcgen05\.mma{GROUP}\.kind::f16(?:\.collector::a::(?:fill|use|lastuse|discard))?"
)
def _mma(e: Emitter, i: Instruction, m: re.Match):
    group = int(m["group"])
    if len(i.operands) not in (5, 6) or i.operands[1].startswith("["):
        raise i.unsupported("A from tensor memory, or operands of the MMA")
    masks = []
    if len(i.operands) == 6:
        masks = [e.source(x, "b32") for x in e.vector(i.operands[4])]
        if len(masks) != 4 * group:
            raise i.unsupported("disable-output-lane vector")
    codes = e.compile(
        e.address(i.operands[0]), e.source(i.operands[1], "b64"), e.source(i.operands[2], "b64"),
        e.source(i.operands[3], "b32"), e.source(i.operands[-1], "pred"), *masks,
    )  # fmt: skip

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        if chosen.size != 1:
            raise EmulationError(
                "tensor-core",
                f"tcgen05.mma issued by {chosen.size} threads, expected one",
            )
        lane = int(chosen[0])
        values = [v[lane] for v in codes(w)]
        if any(int(v) for v in values[5:]):
            raise EmulationError("unsupported", "disabled output lanes")
        _check_group(w, group)
        if (
            group == 2
            and w.cta.__dict__.setdefault("pair_issuer", w.cta.rank) != w.cta.rank
        ):
            raise EmulationError("tensor-core", "both CTAs of a pair issue MMAs")
        d, a, b, word = (int(v) for v in values[:4])
        shape = _decode_instruction(word, group)
        queue = _queue(w, lane)
        queue.issued += 1
        checker = w.machine.checker
        op = (
            checker.issue_tensor(w, lane, queue.agent, queue.issued, i.pc)
            if checker is not None
            else None
        )
        accumulate = bool(values[4])
        queue.items.append(
            (lambda: _execute(w, group, shape, d, a, b, accumulate, op), i.pc)
        )
        w.machine.progress += 1
        w.machine.counters["tcgen05.mma"] += 1

    return body


def _execute(
    w: Warp, group: int, shape, d: int, a: int, b: int, accumulate: bool, op
) -> None:
    machine, ctas = w.machine, _pair(w, group)
    m, n, k = shape.m, shape.n, 16
    lane, first = d >> 16, d & 0xFFFF
    parts_a = [
        read_operand(machine, c, op, a, m // group, k, shape.a_mn_major, shape.a_type)
        for c in ctas
    ]
    parts_b = [
        read_operand(machine, c, op, b, n // group, k, shape.b_mn_major, shape.b_type)
        for c in ctas
    ]
    left = np.concatenate(parts_a) * f4(-1 if shape.negate_a else 1)
    right = np.concatenate(parts_b) * f4(-1 if shape.negate_b else 1)
    layout = _layout(m, n, group, lane)
    old = np.zeros((m, n), f4) if accumulate else None
    if shape.d_type != "f32":
        raise EmulationError("descriptor", "f16 accumulators are not modelled")
    for cta, (rows, columns, lanes, places, stripes) in zip(ctas, layout, strict=True):
        if op is not None:
            used = np.arange(first + int(places.min()), first + int(places.max()) + 1)
            machine.checker.tensor_async(op, cta.tensor, stripes, used, True)
        if accumulate:
            old[rows, columns] = cta.tensor.read(
                lanes, first + places, machine.strict
            ).view(f4)
    total = multiply_accumulate(left, right, old, shape.d_type).astype(f4)
    for cta, (rows, columns, lanes, places, _) in zip(ctas, layout, strict=True):
        cta.tensor.write(lanes, first + places, total[rows, columns].view(u4))
    machine.progress += 1


@step(
    rf"tcgen05\.commit{GROUP}\.mbarrier::arrive::one(?:\.shared::cluster)?(?P<multicast>\.multicast::cluster)?\.b64",
)
def _commit(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2 if m["multicast"] else 1)
    group = int(m["group"])
    mask = [e.source(i.operands[1], "u16")] if m["multicast"] else []
    shared = ".shared::cluster" in i.opcode
    codes = e.compile(e.address(i.operands[0]), *mask)

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        if chosen.size != 1:
            raise EmulationError(
                "tensor-core",
                f"tcgen05.commit issued by {chosen.size} threads, expected one",
            )
        lane = int(chosen[0])
        _check_group(w, group)
        values = codes(w)
        address = int(values[0][lane])
        if not shared:
            from .barrier_ops import barrier_address

            address = barrier_address(w, None, address)
        targets = [address]
        if mask:
            bits = int(values[1][lane])
            targets = [c << 24 | address & 0xFFFFFF for c in range(16) if bits >> c & 1]
            if not targets or bits >> len(w.cta.cluster.ctas):
                raise EmulationError(
                    "tensor-core",
                    f"commit mask {bits:#x} in a cluster of {len(w.cta.cluster.ctas)}",
                )
        flags = [mbarrier.find(w.cta, t) for t in targets]
        queue = _queue(w, lane)
        op = None
        if w.machine.checker is not None:
            op = w.machine.checker.issue_tensor(
                w, lane, queue.agent, queue.issued, i.pc
            )
            for flag in flags:
                w.machine.checker.mbarrier_use(w, lane, flag, i.pc, asynchronous=True)

        def fire() -> None:
            for flag in flags:
                if op is not None:
                    w.machine.checker.complete_tensor(op, flag)
                flag.arrive(1, 0)

        queue.items.append((fire, i.pc))
        w.machine.progress += 1

    return body


# Loads, stores, waits, fences ----------------------------------------------------------------------------------------


class LoadOp:
    """A tcgen05.ld in flight: its registers are undefined until tcgen05.wait::ld."""

    def __init__(self, index: int, registers: list[int], values: np.ndarray):
        self.targets = {index: {r: n for n, r in enumerate(registers)}}
        self.values = values


def _place(w: Warp, address: np.ndarray, shape: str, repeat: int):
    taddr = int(address[0])
    if (address != address[0]).any():
        raise EmulationError(
            "tensor-memory",
            "the lanes of a warp give different tensor-memory addresses",
        )
    lane, column = taddr >> 16, taddr & 0xFFFF
    quarter = w.index % 4 * 32
    lanes, columns = tmem.load_layout(shape, repeat, w.index % 4)
    start = lane - quarter
    if start != 0 and not (start == 16 and shape != "32x32b"):
        raise EmulationError(
            "tensor-memory",
            f"lane {lane} by warp {w.index}, whose quarter starts at lane {quarter}",
        )
    return lanes + start, columns + column


@step(
    r"tcgen05\.ld\.sync\.aligned\.(?P<shape>32x32b|16x64b|16x128b|16x256b)\.x(?P<repeat>\d+)\.b32"
)
def _ld(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    shape, repeat = m["shape"], int(m["repeat"])
    registers = [e.destination(x) for x in e.vector(i.operands[0])]
    _check_registers(i, shape, repeat, registers)
    address = e.compile(e.address(i.operands[1]))

    def body(w: Warp, lanes: np.ndarray):
        if not _all_lanes(w, lanes):
            return NOT_CONVERGED
        where, columns = _place(w, address(w)[0], shape, repeat)
        machine = w.machine
        values = np.ascontiguousarray(
            w.cta.tensor.read(where, columns, machine.strict).T
        )
        if machine.checker is not None:
            machine.checker.tensor(
                w,
                w.cta.tensor,
                np.unique(where // 16),
                np.arange(columns.min(), columns.max() + 1),
                False,
                i.pc,
                True,
            )
        machine.counters["tcgen05.ld"] += 1
        if not machine.strict:
            for n, r in enumerate(registers):
                w.R[r] = values[n]
            return None
        op = LoadOp(w.index, registers, values)
        w.tensor_loads.append(op)
        for r in registers:
            w.pending_registers[r] = op
            w.R[r] = np.full(32, 0xDEADBEEF, u4)
        return None

    return body


def _check_registers(i: Instruction, shape: str, repeat: int, registers: list) -> None:
    try:
        wanted = tmem.load_registers(shape, repeat)
    except ValueError as error:
        raise i.unsupported(str(error)) from None
    if wanted != len(registers):
        raise i.unsupported(f"{len(registers)} registers, expected {wanted}")


@step(
    r"tcgen05\.st\.sync\.aligned\.(?P<shape>32x32b|16x64b|16x128b|16x256b)\.x(?P<repeat>\d+)\.b32"
)
def _st(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    shape, repeat = m["shape"], int(m["repeat"])
    parts = e.vector(i.operands[1])
    _check_registers(i, shape, repeat, parts)
    codes = e.compile(e.address(i.operands[0]), *(e.source(x, "b32") for x in parts))

    def body(w: Warp, lanes: np.ndarray):
        if not _all_lanes(w, lanes):
            return NOT_CONVERGED
        address, *values = codes(w)
        where, columns = _place(w, address, shape, repeat)
        if w.machine.checker is not None:
            used = np.arange(columns.min(), columns.max() + 1)
            w.machine.checker.tensor(
                w, w.cta.tensor, np.unique(where // 16), used, True, i.pc, True
            )
        w.cta.tensor.write(where, columns, np.stack([v.astype(u4) for v in values], 1))
        w.machine.progress += 1
        return None

    return body


@step(r"tcgen05\.wait::(?P<what>ld|st)\.sync\.aligned")
def _wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not _all_lanes(w, lanes):
            return NOT_CONVERGED
        if m["what"] == "ld":
            for op in w.tensor_loads:
                for r, n in op.targets[w.index].items():
                    if w.pending_registers.get(r) is op:
                        w.R[r] = op.values[n]
                        del w.pending_registers[r]
            w.tensor_loads.clear()
        if w.machine.checker is not None:
            w.machine.checker.tensor_wait(w, lanes, m["what"])
        return None

    return body


@step(r"tcgen05\.fence::(?P<side>before|after)_thread_sync")
def _fence(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if w.machine.checker is not None:
            w.machine.checker.tensor_fence(w, lanes, m["side"])

    return body
