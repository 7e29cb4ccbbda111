"""Control flow, warp-level collectives, sleeping, traps and register reallocation."""

from __future__ import annotations

import re

import numpy as np

from .codegen import Emitter, inline, step
from .errors import EmulationError
from .numeric import i4, u4
from .ptx import Instruction
from .warp import LANES, Warp

EXIT = object()  # the active lanes end
NOT_CONVERGED = "the other lanes of its member mask"


@step(r"bra(?:\.uni)?")
def _bra(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    target = i.scope.label(i.operands[0])
    if target is None:
        raise i.unsupported(f"label {i.operands[0]}")
    return lambda w, lanes: (lanes, target)


@step(r"(?:ret|exit)(?:\.uni)?")
def _exit(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)
    return lambda w, lanes: EXIT


@step(r"trap", r"brkpt")
def _trap(e: Emitter, i: Instruction, m: re.Match):
    def body(w: Warp, lanes: np.ndarray):
        raise EmulationError(
            "trap", f"lanes {np.nonzero(lanes)[0].tolist()} executed {i.opcode}"
        )

    return body


@step(r"call(?:\.uni)?")
def _call(e: Emitter, i: Instruction, m: re.Match):
    def body(w: Warp, lanes: np.ndarray):
        raise EmulationError(
            "unsupported", f"device function call (an assertion or printf?): {i.text}"
        )

    return body


@inline(r"griddepcontrol\.(?:wait|launch_dependents)")
def _griddepcontrol(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.do("pass")  # without a programmatic dependency both complete at once


@inline(r"applypriority\.global\.L2::evict_normal")
def _applypriority(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.do("pass")


@step(r"nanosleep\.u32")
def _nanosleep(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    duration = e.compile(e.source(i.operands[0], "u32"))

    def body(w: Warp, lanes: np.ndarray):
        key = ("sleep", i.pc)
        machine = w.machine
        if key not in w.step_state:
            longest = int(duration(w)[0][lanes].max())
            w.step_state[key] = machine.time_ns + machine.random.randrange(
                2 * min(longest, 1_000_000) + 1
            )
            w.sleep_until = w.step_state[key]
            if machine.time_ns < w.sleep_until:
                return f"nanosleep until {w.sleep_until} ns"
        elif machine.time_ns < w.step_state[key]:
            w.sleep_until = w.step_state[key]
            return f"nanosleep until {w.sleep_until} ns"
        del w.step_state[key]
        return None

    return body


@step(r"setmaxnreg\.(?P<way>inc|dec)\.sync\.aligned\.u32")
def _setmaxnreg(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    count, grow = int(i.operands[0], 0), m["way"] == "inc"
    if count % 8 or not 24 <= count <= 256:
        raise i.unsupported("register count, expected a multiple of 8 from 24 to 256")

    def body(w: Warp, lanes: np.ndarray):
        if not w.converged(lanes, 0xFFFFFFFF):
            return NOT_CONVERGED
        cta, change = w.cta, (count - w.registers) * 32
        if (change < 0) if grow else (change > 0):
            raise EmulationError(
                "registers",
                f"setmaxnreg.{m['way']} to {count}, the warp has {w.registers}",
            )
        if change > cta.free_registers:
            return f"{change} free registers of its CTA ({cta.free_registers} are)"
        cta.free_registers -= change
        w.registers = count
        w.machine.progress += 1
        cta.cluster.wake()
        return None

    return body


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
        w.set(predicate, LANES == leader, lanes)
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
