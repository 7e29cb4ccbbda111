"""Cluster launch control: a running cluster takes over the work of one that has not started."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator import mbarrier
from ptx_emulator.codegen import Emitter, inline, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.numeric import u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp

from .bulk_groups import complete_bytes

RESPONSE_BYTES = 16


@step(
    r"clusterlaunchcontrol\.try_cancel\.async(?:\.shared::cta)?\.mbarrier::complete_tx::bytes"
    r"(?P<all>\.multicast::cluster::all)?\.b128"
)
def _try_cancel(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.address(i.operands[0]), e.address(i.operands[1]))

    def body(w: Warp, lanes: np.ndarray):
        chosen = np.nonzero(lanes)[0]
        if chosen.size != 1:
            raise EmulationError(
                "clc", f"try_cancel issued by {chosen.size} threads, expected one"
            )
        target, barrier = (int(v[chosen[0]]) for v in codes(w))
        if target % RESPONSE_BYTES:
            raise EmulationError("alignment", f"CLC response at {target:#x}")
        cluster, machine = w.cta.cluster, w.machine
        ranks = range(len(cluster.ctas)) if m["all"] else [target >> 24]
        flags = [mbarrier.find(w.cta, r << 24 | barrier & 0xFFFFFF) for r in ranks]
        checker = machine.checker
        ops = [
            checker.issue(w, int(chosen[0]), f, i.pc) if checker is not None else None
            for f in flags
        ]

        def fire() -> None:
            response = np.zeros(4, u4)
            pending = w.cta.launch.pending
            if pending:
                response[:] = (*pending.pop(0), 1)
            for r, flag, op in zip(ranks, flags, ops, strict=True):
                _deliver(cluster.ctas[r], target & 0xFFFFFF, response, flag, op)

        machine.post(cluster, fire, i.pc, w)

    return body


def _deliver(cta, offset: int, response: np.ndarray, flag, op) -> None:
    cta.check_shared(offset, RESPONSE_BYTES)
    if op is not None:
        cta.launch.machine.checker.async_access(
            op, cta.shared, np.array([offset]), RESPONSE_BYTES, True
        )
    if cta.shared.watch is not None:
        cta.shared.watch(np.array([offset]), RESPONSE_BYTES)
    cta.shared.fill(response.view(np.uint8), offset)
    complete_bytes(flag, RESPONSE_BYTES)


@inline(r"clusterlaunchcontrol\.query_cancel\.is_canceled\.pred\.b128")
def _is_canceled(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    e.set(
        e.destination(i.operands[0]),
        f"(({e.source(i.operands[1], 'b128')})[:, 1] >> u8(32)) != 0",
        "pred",
    )


@inline(r"clusterlaunchcontrol\.query_cancel\.get_first_ctaid\.v4\.b32\.b128")
def _first_ctaid(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    e.do(f"_v = np.ascontiguousarray({e.source(i.operands[1], 'b128')}).view(u4)")
    for n, target in enumerate(e.vector(i.operands[0])):
        e.set(e.destination(target), f"_v[:, {n}].copy()" if n < 3 else "u4(0)", "b32")


@inline(
    r"clusterlaunchcontrol\.query_cancel\.get_first_ctaid::(?P<part>[xyz])\.b32\.b128"
)
def _first_ctaid_part(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.expect(2)
    part = "xyz".index(m["part"])
    code = f"np.ascontiguousarray({e.source(i.operands[1], 'b128')}).view(u4)[:, {part}].copy()"
    e.set(e.destination(i.operands[0]), code, "b32")
