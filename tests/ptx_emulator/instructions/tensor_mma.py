"""tcgen05.mma and commit: issue by one thread, in-order asynchronous execution."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ptx_emulator import mbarrier
from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.numeric import f4, u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.semantics import descriptors, tmem
from ptx_emulator.semantics.matmul import multiply_accumulate
from ptx_emulator.warp import Warp

from .mbarriers import barrier_address
from .operands import read_operand
from .tensor_allocation import GROUP, check_group, pair_of

K = 16


class TensorQueue:
    """The tcgen05 operations of one thread, executed in order."""

    def __init__(self, w: Warp, lane: int):
        self.w, self.cta, self.lane = w, w.cta, lane
        self.items: deque = deque()
        self.issued = 0
        checker = w.machine.checker
        self.agent = checker.agent(w.cta.launch) if checker is not None else None
        w.machine.add_queue(self, w.cta.cluster)

    def add(self, item: Callable[[], None], pc: int) -> None:
        self.items.append((item, pc))
        self.w.machine.queued += 1

    def ready(self) -> bool:
        return bool(self.items)

    def fire(self) -> None:
        item, pc = self.items.popleft()
        self.w.machine.queued -= 1
        self.w.machine.firing = (self.w, pc)
        item()

    def describe(self) -> str:
        return f"tcgen05 queue of {self.w.name} lane {self.lane}"


def _queue(w: Warp, lane: int) -> TensorQueue:
    if lane not in w.tensor_queues:
        w.tensor_queues[lane] = TensorQueue(w, lane)
    return w.tensor_queues[lane]


def _single(lanes: np.ndarray, what: str) -> int:
    chosen = np.nonzero(lanes)[0]
    if chosen.size != 1:
        message = f"{what} issued by {chosen.size} threads, expected one"
        raise EmulationError("tensor-core", message)
    return int(chosen[0])


@lru_cache(maxsize=1024)
def _decode(word: int, group: int) -> descriptors.InstructionDescriptor:
    try:
        shape = descriptors.decode_instruction_descriptor(word, "f16", group)
    except ValueError as error:
        raise EmulationError("descriptor", str(error)) from None
    if shape.d_type != "f32":
        raise EmulationError("descriptor", "f16 accumulators are not modelled")
    return shape


@lru_cache(maxsize=64)
def _layout(m: int, n: int, group: int, start: int):
    """Per CTA of the pair: rows and columns of D, tensor lanes and columns, stripes."""
    try:
        cta, lane, column = tmem.accumulator_layout(m, n, group, start)
    except ValueError as error:
        raise EmulationError("tensor-memory", str(error)) from None
    parts = []
    for c in range(group):
        rows, columns = np.nonzero(cta == c)
        lanes = lane[rows, columns]
        stripes = np.unique(lanes // 16)
        parts.append((rows, columns, lanes, column[rows, columns], stripes))
    return parts


@step(
    rf"tcgen05\.mma{GROUP}\.kind::f16(?:\.collector::a::(?:fill|use|lastuse|discard))?"
)
def _mma(e: Emitter, i: Instruction, m: re.Match):
    group = int(m["group"])
    if len(i.operands) not in (5, 6) or i.operands[1].startswith("["):
        raise i.unsupported("A from tensor memory, or operands of the MMA")
    masks = e.vector(i.operands[4]) if len(i.operands) == 6 else []
    if masks and len(masks) != 4 * group:
        raise i.unsupported("disable-output-lane vector")
    codes = e.compile(
        e.address(i.operands[0]),
        e.source(i.operands[1], "b64"),
        e.source(i.operands[2], "b64"),
        e.source(i.operands[3], "b32"),
        e.source(i.operands[-1], "pred"),
        *(e.source(x, "b32") for x in masks),
    )

    def body(w: Warp, lanes: np.ndarray):
        lane = _single(lanes, "tcgen05.mma")
        values = [v[lane] for v in codes(w)]
        if any(int(v) for v in values[5:]):
            raise EmulationError("unsupported", "disabled output lanes")
        check_group(w, group)
        _check_issuer(w, group)
        d, a, b, word = (int(v) for v in values[:4])
        mma = Mma(w, group, _decode(word, group), d, a, b, bool(values[4]))
        queue = _queue(w, lane)
        queue.issued += 1
        checker = w.machine.checker
        if checker is not None:
            mma.op = checker.issue_tensor(w, lane, queue.agent, queue.issued, i.pc)
        queue.add(mma.execute, i.pc)
        w.machine.progress += 1
        w.machine.counters["tcgen05.mma"] += 1

    return body


def _check_issuer(w: Warp, group: int) -> None:
    """One CTA of a pair issues the MMAs of both."""
    if group == 2:
        first = pair_of(w, 2)[0].tensor
        if first.issuer not in (None, w.cta.rank):
            raise EmulationError("tensor-core", "both CTAs of a pair issue MMAs")
        first.issuer = w.cta.rank


class Mma:
    """One tcgen05.mma of kind f16 with both operands in shared memory."""

    def __init__(self, w: Warp, group: int, shape, d: int, a: int, b: int, add: bool):
        self.w, self.group, self.shape = w, group, shape
        self.d, self.a, self.b, self.accumulate = d, a, b, add
        self.op = None

    def _operand(self, descriptor: int, rows: int, mn_major: bool, kind: str, negate):
        machine, share = self.w.machine, rows // self.group
        parts = [
            read_operand(machine, c, self.op, descriptor, share, K, mn_major, kind)
            for c in pair_of(self.w, self.group)
        ]
        return np.concatenate(parts) * f4(-1 if negate else 1)

    def execute(self) -> None:
        machine, s = self.w.machine, self.shape
        left = self._operand(self.a, s.m, s.a_mn_major, s.a_type, s.negate_a)
        right = self._operand(self.b, s.n, s.b_mn_major, s.b_type, s.negate_b)
        lane, first = self.d >> 16, self.d & 0xFFFF
        layout = _layout(s.m, s.n, self.group, lane)
        pairs = list(zip(pair_of(self.w, self.group), layout, strict=True))
        old = np.zeros((s.m, s.n), f4) if self.accumulate else None
        for cta, (rows, columns, lanes, places, stripes) in pairs:
            if self.op is not None:
                low, high = int(places.min()), int(places.max())
                used = np.arange(first + low, first + high + 1)
                machine.checker.tensor_async(self.op, cta.tensor, stripes, used, True)
            if old is not None:
                values = cta.tensor.read(lanes, first + places, machine.strict)
                old[rows, columns] = values.view(f4)
        total = multiply_accumulate(left, right, old, s.d_type).astype(f4)
        for cta, (rows, columns, lanes, places, _) in pairs:
            cta.tensor.write(lanes, first + places, total[rows, columns].view(u4))
        machine.progress += 1


@step(
    rf"tcgen05\.commit{GROUP}\.mbarrier::arrive::one(?P<space>\.shared::cluster)?"
    r"(?P<multicast>\.multicast::cluster)?\.b64"
)
def _commit(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2 if m["multicast"] else 1)
    group = int(m["group"])
    mask = [e.source(i.operands[1], "u16")] if m["multicast"] else []
    codes = e.compile(e.address(i.operands[0]), *mask)

    def body(w: Warp, lanes: np.ndarray):
        lane = _single(lanes, "tcgen05.commit")
        check_group(w, group)
        values = [int(v[lane]) for v in codes(w)]
        address = barrier_address(m["space"], values[0])
        flags = [mbarrier.find(w.cta, t) for t in _targets(w, address, values[1:])]
        queue, checker, op = _queue(w, lane), w.machine.checker, None
        if checker is not None:
            op = checker.issue_tensor(w, lane, queue.agent, queue.issued, i.pc)
            for flag in flags:
                checker.mbarrier_use(w, lane, flag, i.pc, asynchronous=True)

        def fire() -> None:
            for flag in flags:
                if op is not None:
                    checker.complete_tensor(op, flag)
                flag.arrive(1, 0)

        queue.add(fire, i.pc)
        w.machine.progress += 1

    return body


def _targets(w: Warp, address: int, mask: list[int]) -> list[int]:
    """Shared addresses that a commit signals: its own, or one in each CTA of the mask."""
    if not mask:
        return [address]
    count = len(w.cta.cluster.ctas)
    if not mask[0] or mask[0] >> count:
        what = f"commit mask {mask[0]:#x} in a cluster of {count}"
        raise EmulationError("tensor-core", what)
    return [c << 24 | address & 0xFFFFFF for c in range(count) if mask[0] >> c & 1]
