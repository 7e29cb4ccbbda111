"""ldmatrix and stmatrix: 8 x 8 matrices of 16-bit elements between shared memory and registers."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.numeric import u2, u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.semantics.fragments import matrix_8x8
from ptx_emulator.warp import Warp

from .control import NOT_CONVERGED, all_lanes

ROW_BYTES = 16
FORM = (
    r"\.sync\.aligned(?=\S*\.m8n8)(?:\.m8n8)?\.x(?P<count>[124])(?:\.m8n8)?"
    r"(?P<trans>\.trans)?(?:\.shared(?:::cta)?)\.b16"
)


@step(r"ldmatrix" + FORM)
def _ldmatrix(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    count = int(m["count"])
    registers = [e.destination(x) for x in e.vector(i.operands[0])]
    if len(registers) != count:
        raise i.unsupported("registers of ldmatrix")
    address = e.compile(e.address(i.operands[1]))
    row, column = _fragment(bool(m["trans"]))

    def body(w: Warp, lanes: np.ndarray):
        if not all_lanes(w, lanes):
            return NOT_CONVERGED
        used = np.arange(32) < 8 * count
        raw = w.load("shared", address(w)[0], 2, 8, used, i.pc)
        for n, register in enumerate(registers):
            halves = raw[8 * n : 8 * n + 8][row, column]
            w.set(register, np.ascontiguousarray(halves).view(u4)[:, 0], lanes)
        return None

    return body


@step(r"stmatrix" + FORM)
def _stmatrix(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    count = int(m["count"])
    parts = e.vector(i.operands[1])
    if len(parts) != count:
        raise i.unsupported("registers of stmatrix")
    codes = e.compile(e.address(i.operands[0]), *(e.source(x, "b32") for x in parts))
    row, column = _fragment(bool(m["trans"]))

    def body(w: Warp, lanes: np.ndarray):
        if not all_lanes(w, lanes):
            return NOT_CONVERGED
        address, *values = codes(w)
        rows = np.zeros((32, 8), u2)
        for n, value in enumerate(values):
            matrix = np.zeros((8, 8), u2)
            matrix[row, column] = (
                np.ascontiguousarray(value.astype(u4)).view(u2).reshape(32, 2)
            )
            rows[8 * n : 8 * n + 8] = matrix
        used = np.arange(32) < 8 * count
        w.store("shared", address, [rows[:, k] for k in range(8)], used, i.pc)
        return None

    return body


def _fragment(transposed: bool):
    row, column = matrix_8x8()
    return (column, row) if transposed else (row, column)
