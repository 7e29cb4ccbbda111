"""mbarrier instructions on objects in shared memory."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator import mbarrier
from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.memory import SHARED_WINDOW, WINDOW_BYTES
from ptx_emulator.numeric import u8
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp

SPACE = r"(?:\.(?P<space>shared(?:::(?:cta|cluster))?))?"
ORDER = r"(?:\.(?P<sem>release|acquire|relaxed)\.(?P<scope>cta|cluster))?"


def barrier_address(space: str | None, address: int) -> int:
    """A shared::cluster address from an operand of a state space, or generic."""
    if space is not None:
        return address
    if not SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
        what = f"generic address {address:#x} is not shared memory"
        raise EmulationError("mbarrier", what)
    return address - SHARED_WINDOW


@step(rf"mbarrier\.init{SPACE}\.b64")
def _init(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.address(i.operands[0]), e.source(i.operands[1], "u32"))

    def body(w: Warp, lanes: np.ndarray):
        address, count = codes(w)
        for lane in np.nonzero(lanes)[0]:
            cta, offset = w.cta.shared_of(
                barrier_address(m["space"], int(address[lane]))
            )
            if cta is not w.cta:
                raise EmulationError(
                    "mbarrier", f"init of an mbarrier of {cta.name} from another CTA"
                )
            barrier = mbarrier.initialise(cta, offset, int(count[lane]))
            if w.machine.checker is not None:
                w.machine.checker.mbarrier_init(w, int(lane), barrier, i.pc)
        w.machine.progress += 1

    return body


@step(rf"mbarrier\.inval{SPACE}\.b64")
def _inval(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    codes = e.compile(e.address(i.operands[0]))

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0]:
            barrier = mbarrier.find(
                w.cta, barrier_address(m["space"], int(codes(w)[0][lane]))
            )
            del barrier.cta.mbarriers[barrier.offset]

    return body


@step(
    rf"mbarrier\.(?P<what>arrive|arrive_drop)(?P<expect>\.expect_tx)?{ORDER}{SPACE}\.b64"
)
def _arrive(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    target = None
    if not operands[0].startswith("["):
        target = e.destination(operands.pop(0))
    if m["sem"] == "acquire" or (
        m["space"] == "shared::cluster" and target is not None
    ):
        raise i.unsupported()
    if len(operands) not in ((2,) if m["expect"] else (1, 2)):
        raise i.unsupported("operands of the arrive")
    codes = e.compile(
        e.address(operands[0]), *(e.source(x, "u32") for x in operands[1:])
    )

    def body(w: Warp, lanes: np.ndarray):
        address, *extra = codes(w)
        token = np.zeros(32, u8)
        checker = w.machine.checker
        arrivals: dict[int, list[int]] = {}
        for lane in np.nonzero(lanes)[0]:
            arrivals.setdefault(int(address[lane]), []).append(int(lane))
        for where, group in arrivals.items():
            barrier = mbarrier.find(w.cta, barrier_address(m["space"], where))
            token[group] = barrier.phase
            if checker is not None:
                members = np.isin(np.arange(32), group)
                checker.mbarrier_use(w, group[0], barrier, i.pc)
                if m["sem"] != "relaxed":
                    checker.mbarrier_arrive(w, members, barrier, m["scope"])
            for lane in group:
                amount = int(extra[0][lane]) if extra else 1
                expect, count = (amount, 1) if m["expect"] else (0, amount)
                barrier.arrive(count, expect, m["what"] == "arrive_drop")
        w.set(target, token, lanes)

    return body


@step(
    rf"mbarrier\.(?P<what>expect_tx|complete_tx)(?:\.relaxed\.(?:cta|cluster))?{SPACE}\.b64"
)
def _transactions(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.address(i.operands[0]), e.source(i.operands[1], "u32"))

    def body(w: Warp, lanes: np.ndarray):
        address, count = codes(w)
        for lane in np.nonzero(lanes)[0]:
            barrier = mbarrier.find(
                w.cta, barrier_address(m["space"], int(address[lane]))
            )
            if w.machine.checker is not None:
                w.machine.checker.mbarrier_use(w, int(lane), barrier, i.pc)
            (barrier.expect if m["what"] == "expect_tx" else barrier.complete)(
                int(count[lane])
            )

    return body


@step(
    rf"mbarrier\.(?P<what>try_wait|test_wait)(?P<parity>\.parity)?{ORDER}{SPACE}\.b64"
)
def _wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(3, 4)
    if (
        m["sem"] == "release"
        or m["space"] == "shared::cluster"
        or (len(i.operands) == 4 and m["what"] == "test_wait")
    ):
        raise i.unsupported()
    register = e.destination(i.operands[0])
    kind = "u32" if m["parity"] else "b64"
    codes = e.compile(e.address(i.operands[1]), e.source(i.operands[2], kind))
    if len(i.operands) == 4:
        e.source(i.operands[3], "u32")

    def body(w: Warp, lanes: np.ndarray):
        address, wanted = codes(w)
        done = np.zeros(32, bool)
        machine, waits = w.machine, ""
        found = []
        for lane in np.nonzero(lanes)[0]:
            key = (int(address[lane]), int(wanted[lane]))
            if key in found:
                continue
            found.append(key)
            barrier = mbarrier.find(w.cta, barrier_address(m["space"], key[0]))
            if barrier.cta is not w.cta:
                raise EmulationError(
                    "mbarrier", f"wait on the {barrier.name} from another CTA"
                )
            if machine.checker is not None:
                machine.checker.mbarrier_use(w, int(lane), barrier, i.pc)
            if m["parity"] and key[1] > 1:
                raise EmulationError("mbarrier", f"parity {key[1]}, expected 0 or 1")
            complete = (
                barrier.state.test_parity(key[1])
                if m["parity"]
                else barrier.phase != key[1]
            )
            same = lanes & (address == key[0]) & (wanted == wanted.dtype.type(key[1]))
            if complete:
                done |= same
                if machine.checker is not None and m["sem"] != "relaxed":
                    phase = key[1] & 1
                    machine.checker.mbarrier_wait(w, same, barrier, phase, m["scope"])
            else:
                waits = f"parity {key[1]} of {barrier.describe()}"
        if waits and m["what"] == "try_wait" and not machine.time_out_now(w):
            return waits
        w.set(register, done, lanes)
        return None

    return body
