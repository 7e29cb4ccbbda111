"""Control flow, sleeping, traps and register reallocation."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, inline, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp

EXIT = object()  # the active lanes end
NOT_CONVERGED = "the other lanes of its member mask"


def whole_warp(w: Warp, lanes: np.ndarray) -> bool:
    """As all_lanes, for instructions that a warp with exited threads may not execute."""
    if w.exited.any():
        lost = np.nonzero(w.exited)[0].tolist()
        raise EmulationError("convergence", f"lanes {lost} have exited or do not exist")
    return all_lanes(w, lanes)


def all_lanes(w: Warp, lanes: np.ndarray) -> bool:
    """Whether the whole warp has converged, as .aligned instructions demand."""
    return w.converged(lanes, 0xFFFFFFFF)


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
        if "__assertfail" in i.text:
            raise EmulationError("trap", "a device assertion failed")
        raise EmulationError("unsupported", f"device function call: {i.text}")

    return body


@inline(r"griddepcontrol\.(?:wait|launch_dependents)")
def _griddepcontrol(e: Emitter, i: Instruction, m: re.Match) -> None:
    e.do("pass")  # without a programmatic dependency both complete at once


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
        if not all_lanes(w, lanes):
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
        w.register_changes.append(i.pc)
        w.machine.progress += 1
        cta.cluster.wake()
        return None

    return body
