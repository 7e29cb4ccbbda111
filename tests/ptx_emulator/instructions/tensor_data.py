"""tcgen05.ld, st, wait and fence."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.numeric import u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.semantics import tmem
from ptx_emulator.warp import Warp

from .control import NOT_CONVERGED, whole_warp

SHAPE = (
    r"\.sync\.aligned\.(?P<shape>32x32b|16x64b|16x128b|16x256b)\.x(?P<repeat>\d+)\.b32"
)
UNDEFINED = np.full(32, 0xDEADBEEF, u4)


class LoadOp:
    """A tcgen05.ld in flight: its registers are undefined until tcgen05.wait::ld."""

    def __init__(self, index: int, registers: list[int], values: np.ndarray):
        self.targets = {index: {r: n for n, r in enumerate(registers)}}
        self.values = values


def _place(w: Warp, address: np.ndarray, shape: str, repeat: int):
    """Lanes and columns, [32, registers]; the address must lie in the warp's quarter."""
    if (address != address[0]).any():
        what = "the lanes of a warp give different tensor-memory addresses"
        raise EmulationError("tensor-memory", what)
    lane, column = int(address[0]) >> 16, int(address[0]) & 0xFFFF
    quarter = w.index % 4 * 32
    start = lane - quarter
    if start and not (start == 16 and shape != "32x32b"):
        what = f"lane {lane} by warp {w.index}, whose quarter starts at {quarter}"
        raise EmulationError("tensor-memory", what)
    lanes, columns = tmem.load_layout(shape, repeat, w.index % 4)
    return lanes + start, columns + column


def _check_registers(i: Instruction, m: re.Match, registers: list) -> None:
    try:
        wanted = tmem.load_registers(m["shape"], int(m["repeat"]))
    except ValueError as error:
        raise i.unsupported(str(error)) from None
    if wanted != len(registers):
        raise i.unsupported(f"{len(registers)} registers, expected {wanted}")


def _tell_checker(w: Warp, lanes, columns, write: bool, pc: int) -> None:
    checker = w.machine.checker
    if checker is not None:
        used = np.arange(columns.min(), columns.max() + 1)
        checker.tensor(w, w.cta.tensor, np.unique(lanes // 16), used, write, pc)


@step(r"tcgen05\.ld" + SHAPE)
def _ld(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    shape, repeat = m["shape"], int(m["repeat"])
    registers = [e.destination(x) for x in e.vector(i.operands[0])]
    _check_registers(i, m, registers)
    address = e.compile(e.address(i.operands[1]))

    def body(w: Warp, lanes: np.ndarray):
        if not whole_warp(w, lanes):
            return NOT_CONVERGED
        where, columns = _place(w, address(w)[0], shape, repeat)
        _tell_checker(w, where, columns, False, i.pc)
        read = w.cta.tensor.read(where, columns, w.machine.strict)
        values = np.ascontiguousarray(read.T)
        w.machine.counters["tcgen05.ld"] += 1
        if not w.machine.strict:
            for n, r in enumerate(registers):
                w.R[r] = values[n]
            return None
        op = LoadOp(w.index, registers, values)
        w.tensor_loads.append(op)
        for r in registers:
            w.in_flight[r] = op
            w.R[r] = UNDEFINED
        return None

    return body


@step(r"tcgen05\.st" + SHAPE)
def _st(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    shape, repeat = m["shape"], int(m["repeat"])
    parts = e.vector(i.operands[1])
    _check_registers(i, m, parts)
    codes = e.compile(e.address(i.operands[0]), *(e.source(x, "b32") for x in parts))

    def body(w: Warp, lanes: np.ndarray):
        if not whole_warp(w, lanes):
            return NOT_CONVERGED
        address, *values = codes(w)
        where, columns = _place(w, address, shape, repeat)
        _tell_checker(w, where, columns, True, i.pc)
        data = np.stack([v.astype(u4) for v in values], 1)
        w.cta.tensor.write(where, columns, data)
        w.machine.progress += 1
        return None

    return body


def _finish_loads(w: Warp) -> None:
    for op in w.tensor_loads:
        for r, n in op.targets[w.index].items():
            if w.in_flight.get(r) is op:
                w.R[r] = op.values[n]
                del w.in_flight[r]
    w.tensor_loads.clear()


@step(r"tcgen05\.wait::(?P<what>ld|st)\.sync\.aligned")
def _wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not whole_warp(w, lanes):
            return NOT_CONVERGED
        if m["what"] == "ld":
            _finish_loads(w)
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
