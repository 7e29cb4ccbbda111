"""tcgen05.alloc, dealloc and relinquish_alloc_permit."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.memory import WINDOW_BYTES
from ptx_emulator.numeric import u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import LANES, Warp

from .control import NOT_CONVERGED, whole_warp

GROUP = r"\.cta_group::(?P<group>[12])"
SIZES = (32, 64, 128, 256, 512)


def pair_of(w: Warp, group: int) -> list:
    """The CTAs that an operation of this cta_group works on, the even one first."""
    if group == 1:
        return [w.cta]
    ctas, rank = w.cta.cluster.ctas, w.cta.rank
    if rank | 1 >= len(ctas):
        what = f"cta_group::2 in a cluster of {len(ctas)}"
        raise EmulationError("tensor-memory", what)
    return [ctas[rank & ~1], ctas[rank | 1]]


def check_group(w: Warp, group: int) -> None:
    """All tcgen05 instructions of a kernel use one cta_group."""
    cluster = w.cta.cluster
    if cluster.cta_group not in (None, group):
        what = f"cta_group::{group} after cta_group::{cluster.cta_group} in one kernel"
        raise EmulationError("tensor-memory", what)
    cluster.cta_group = group


@step(rf"tcgen05\.alloc{GROUP}\.sync\.aligned(?:\.shared::cta)?\.b32")
def _alloc(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.address(i.operands[0]), e.source(i.operands[1], "u32"))
    group = int(m["group"])

    def body(w: Warp, lanes: np.ndarray):
        if not whole_warp(w, lanes):
            return NOT_CONVERGED
        address, columns = codes(w)
        count, tensor = _uniform(columns), w.cta.tensor
        check_group(w, group)
        if count not in SIZES:
            what = f"alloc of {count} columns, expected one of {SIZES}"
            raise EmulationError("tensor-memory", what)
        if not tensor.permit:
            what = "alloc after relinquish_alloc_permit"
            raise EmulationError("tensor-memory", what)
        if w.index not in tensor.granted and count > tensor.largest:
            what = f"alloc of {count} columns after one of {tensor.largest}"
            raise EmulationError("tensor-memory", what)
        if w.index not in tensor.granted and (wait := _request(w, group, count)):
            return wait
        column = tensor.granted.pop(w.index)
        if count != tensor.allocations[column]:
            what = "the CTAs of a pair allocate different sizes"
            raise EmulationError("tensor-memory", what)
        shared = ".shared" in i.opcode or int(address[0]) < WINDOW_BYTES
        space = "shared" if shared else "generic"
        w.store(space, address, [np.full(32, column, u4)], LANES == 0, i.pc)
        return None

    return body


def _uniform(values: np.ndarray) -> int:
    if (values != values[0]).any():
        raise EmulationError(
            "tensor-memory", "the lanes of a warp give different values"
        )
    return int(values[0])


def _request(w: Warp, group: int, count: int) -> str | None:
    """Asks for columns in every CTA of the group; grants once all have asked."""
    ctas = pair_of(w, group)
    requests = ctas[0].tensor.requests
    requests[w.cta.rank] = w
    if any(c.rank not in requests for c in ctas):
        return f"tcgen05.alloc of {count} columns by the other CTA of the pair"
    starts = [c.tensor.fits(count) for c in ctas]
    if None in starts:
        used = [c.tensor.allocations for c in ctas]
        return f"{count} free tensor-memory columns (allocated: {used})"
    for c in ctas:
        c.tensor.allocate(max(starts), count)
        c.tensor.granted[requests.pop(c.rank).index] = max(starts)
    w.machine.progress += 1
    w.cta.cluster.wake()
    return None


@step(rf"tcgen05\.dealloc{GROUP}\.sync\.aligned\.b32")
def _dealloc(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.source(i.operands[0], "b32"), e.source(i.operands[1], "u32"))
    group = int(m["group"])

    def body(w: Warp, lanes: np.ndarray):
        if not whole_warp(w, lanes):
            return NOT_CONVERGED
        check_group(w, group)
        start, count = (_uniform(v) for v in codes(w))
        tensor = w.cta.tensor
        tensor.free(start, count)
        if w.machine.checker is not None:
            columns = np.arange(start, start + count)
            w.machine.checker.tensor_free(w, tensor, columns, i.pc)
        w.machine.progress += 1
        w.cta.cluster.wake()
        return None

    return body


@step(rf"tcgen05\.relinquish_alloc_permit{GROUP}\.sync\.aligned")
def _relinquish(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not whole_warp(w, lanes):
            return NOT_CONVERGED
        w.cta.tensor.permit = False
        return None

    return body
