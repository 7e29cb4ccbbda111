"""cp.async.bulk and cp.reduce.async.bulk: contiguous copies and reductions."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator import mbarrier
from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.memory import Bytes
from ptx_emulator.numeric import REDUCTION_DTYPES, reduce_pair, u1
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp

from .bulk_groups import complete_bytes, post_store

CHUNK = 16
HINT = r"(?P<hint>\.L2::cache_hint)?"


def _check(target: int, source: int, size: int) -> None:
    if target % CHUNK or source % CHUNK or size % CHUNK or size <= 0:
        what = f"{size} bytes from {source:#x} to {target:#x}: not multiples of {CHUNK}"
        raise EmulationError("alignment", what)


def _global(w: Warp, address: int, size: int) -> tuple[Bytes, int]:
    window, offset = w.machine.space.contiguous(w.cta.launch.rank, address, size)
    if window.multicast:
        what = "bulk copy through a multicast address"
        raise EmulationError("multicast", what)
    return window.replicas[0], offset


def _shared(w: Warp, address: int, size: int) -> tuple[Bytes, int]:
    cta, offset = w.cta.shared_of(address)
    cta.check_shared(offset, size)
    return cta.shared, offset


class _Copy:
    """`size` contiguous bytes from one memory to another."""

    def __init__(self, w: Warp, source, target, size: int, reduction=None, kind=None):
        self.machine = w.machine
        (self.source, self.start), (self.target, self.offset) = source, target
        self.size, self.reduction, self.kind = size, reduction, kind

    def read(self, op) -> None:
        start = self.start
        if op is not None:
            where = np.array([start])
            self.machine.checker.async_access(
                op, self.source, where, self.size, False, 0
            )
        part = slice(start, start + self.size)
        if self.machine.strict and not self.source.valid[part].all():
            what = f"bulk copy reads bytes never written of {self.source.label}"
            raise EmulationError("poison", what)
        self.data = self.source.data[part].copy()

    def write(self, op) -> None:
        where = np.array([self.offset])
        if op is not None:
            stage = len(op.agents) - 1
            self.machine.checker.async_access(
                op, self.target, where, self.size, True, stage
            )
        if self.target.watch is not None:
            self.target.watch(where, self.size)
        part, data = slice(self.offset, self.offset + self.size), self.data
        if self.reduction is not None:
            dtype = REDUCTION_DTYPES[self.kind]
            old = self.target.data[part].view(dtype)
            data = reduce_pair(self.reduction, self.kind, old, data.view(dtype)).view(
                u1
            )
        self.target.data[part] = data
        self.target.valid[part] = 1


@step(
    r"cp\.async\.bulk\.shared::(?:cluster|cta)\.(?P<src>global|shared::cta)"
    rf"\.mbarrier::complete_tx::bytes{HINT}"
)
def _to_shared(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    if len(operands) != 4:
        raise i.unsupported("operands of the bulk copy")
    target, source, size, barrier = operands
    codes = e.compile(
        e.address(target), e.address(source), e.source(size, "u32"), e.address(barrier)
    )
    find_source = _global if m["src"] == "global" else _shared

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0].tolist():
            target, source, size, barrier = (int(v[lane]) for v in codes(w))
            _check(target, source, size)
            if barrier >> 24 != target >> 24:
                what = "destination and mbarrier are in different CTAs"
                raise EmulationError("bulk-copy", what)
            flag = mbarrier.find(w.cta, barrier)
            copy = _Copy(
                w, find_source(w, source, size), _shared(w, target, size), size
            )
            _issue(w, lane, i.pc, copy, flag)

    return body


def _issue(w: Warp, lane: int, pc: int, copy: _Copy, flag: mbarrier.Mbarrier) -> None:
    machine = w.machine
    op = None
    if machine.checker is not None:
        op = machine.checker.issue(w, lane, flag, pc)

    def land() -> None:
        copy.read(op)
        copy.write(op)
        complete_bytes(flag, copy.size)

    machine.post(flag.cta.cluster, land, pc, w)


@step(
    rf"cp\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}",
    rf"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}"
    r"\.(?P<op>add|min|max|and|or|xor)(?:\.noftz)?"
    r"\.(?P<t>u32|s32|u64|s64|b32|b64|f32|f64|f16|bf16)",
)
def _to_global(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    if len(operands) != 3:
        raise i.unsupported("operands of the bulk copy")
    target, source, size = operands
    codes = e.compile(e.address(target), e.address(source), e.source(size, "u32"))
    reduction, kind = m.groupdict().get("op"), m.groupdict().get("t")

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0].tolist():
            target, source, size = (int(v[lane]) for v in codes(w))
            _check(target, source, size)
            places = _shared(w, source, size), _global(w, target, size)
            post_store(w, lane, i.pc, _Copy(w, *places, size, reduction, kind))
        w.machine.counters["bulk store"] += 1

    return body
