"""Warp-level collectives: syncwarp, election, shuffles, votes, reductions, matches."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.numeric import i4, u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import LANES, Warp

from .control import NOT_CONVERGED


def member_mask(e: Emitter, i: Instruction, text: str):
    """A check of a .sync member mask; returns None when all its lanes are here, else what is waited for."""
    codes = e.compile(e.source(text, "u32"))

    def check(w: Warp, lanes: np.ndarray):
        mask = int(codes(w)[0][int(np.argmax(lanes))])
        inside = ((mask >> LANES) & 1).astype(bool)
        if (lanes & ~inside).any():
            raise EmulationError(
                "convergence",
                f"lanes {np.nonzero(lanes & ~inside)[0].tolist()} are not in their mask {mask:#x}",
            )
        return None if w.converged(lanes, mask) else NOT_CONVERGED

    return check


@step(r"bar\.warp\.sync")
def _warp_sync(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    check = member_mask(e, i, i.operands[0])

    def body(w: Warp, lanes: np.ndarray):
        if wait := check(w, lanes):
            return wait
        if w.machine.checker is not None:
            w.machine.checker.warp_sync(w, lanes)
        return None

    return body


@step(r"elect\.sync")
def _elect(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    lane_text, predicate_text = (x.strip() for x in i.operands[0].split("|"))
    lane_register, predicate = e.destination(lane_text), e.destination(predicate_text)
    check = member_mask(e, i, i.operands[1])

    def body(w: Warp, lanes: np.ndarray):
        if wait := check(w, lanes):
            return wait
        leader = w.machine.elected_lane(lanes)
        w.set(lane_register, np.full(32, leader, u4), lanes)
        w.set(predicate, leader == LANES, lanes)
        return None

    return body


@step(r"shfl\.sync\.(?P<mode>up|down|bfly|idx)\.b32")
def _shfl(e: Emitter, i: Instruction, m: re.Match):
    e.expect(5)
    target, _, predicate_text = i.operands[0].partition("|")
    register = e.destination(target.strip())
    predicate = e.destination(predicate_text.strip()) if predicate_text else None
    codes = e.compile(*(e.source(x, "b32") for x in i.operands[1:4]))
    check = member_mask(e, i, i.operands[4])
    mode = m["mode"]

    def body(w: Warp, lanes: np.ndarray):
        if wait := check(w, lanes):
            return wait
        value, b, c = codes(w)
        b, clamp, segment = (
            (b & u4(31)).astype(i4),
            (c & u4(31)).astype(i4),
            ((c >> u4(8)) & u4(31)).astype(i4),
        )
        lane = LANES.astype(i4)
        high, low = (lane & segment) | (clamp & ~segment), lane & segment
        source = {
            "up": lane - b,
            "down": lane + b,
            "bfly": lane ^ b,
            "idx": low | (b & ~segment),
        }[mode]
        inside = source >= high if mode == "up" else source <= high
        source = np.where(inside, source, lane)
        if (~lanes[source])[lanes].any():
            raise EmulationError(
                "convergence", "shfl reads a lane that does not take part"
            )
        w.set(register, value[source], lanes)
        w.set(predicate, inside, lanes)
        return None

    return body


@step(r"vote\.sync\.(?P<mode>all|any|uni|ballot)\.(?P<t>pred|b32)")
def _vote(e: Emitter, i: Instruction, m: re.Match):
    e.expect(3)
    if (m["mode"] == "ballot") != (m["t"] == "b32"):
        raise i.unsupported()
    register = e.destination(i.operands[0])
    predicate = e.compile(e.source(i.operands[1], "pred"))
    check = member_mask(e, i, i.operands[2])
    mode = m["mode"]

    def body(w: Warp, lanes: np.ndarray):
        if wait := check(w, lanes):
            return wait
        value = predicate(w)[0] & lanes
        if mode == "ballot":
            w.set(
                register,
                np.full(32, sum(1 << int(n) for n in np.nonzero(value)[0]), u4),
                lanes,
            )
        else:
            active = value[lanes]
            result = {
                "any": active.any(),
                "all": active.all(),
                "uni": active.all() or not active.any(),
            }[mode]
            w.set(register, np.full(32, result), lanes)
        return None

    return body


@step(r"redux\.sync\.(?P<op>add|min|max|and|or|xor)\.(?P<t>u32|s32|b32)")
def _redux(e: Emitter, i: Instruction, m: re.Match):
    e.expect(3)
    register = e.destination(i.operands[0])
    code = e.compile(e.source(i.operands[1], m["t"]))
    check = member_mask(e, i, i.operands[2])
    function = {
        "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[m["op"]]  # fmt: skip

    def body(w: Warp, lanes: np.ndarray):
        if wait := check(w, lanes):
            return wait
        value = code(w)[0]
        w.set(
            register,
            np.full(32, function.reduce(value[lanes], dtype=value.dtype)).view(u4),
            lanes,
        )
        return None

    return body


@step(r"match\.(?P<mode>any)\.sync\.(?P<t>b32|b64)")
def _match(e: Emitter, i: Instruction, m: re.Match):
    e.expect(3)
    register = e.destination(i.operands[0])
    code = e.compile(e.source(i.operands[1], m["t"]))
    check = member_mask(e, i, i.operands[2])

    def body(w: Warp, lanes: np.ndarray):
        if wait := check(w, lanes):
            return wait
        value = code(w)[0]
        equal = (value[:, None] == value[None, :]) & lanes[None, :]
        w.set(
            register,
            (equal.astype(np.uint64) << LANES.astype(np.uint64)).sum(1).astype(u4),
            lanes,
        )
        return None

    return body


@step(r"activemask\.b32")
def _activemask(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    register = e.destination(i.operands[0])

    def body(w: Warp, lanes: np.ndarray):
        w.set(
            register,
            np.full(32, sum(1 << int(n) for n in np.nonzero(lanes)[0]), u4),
            lanes,
        )

    return body
