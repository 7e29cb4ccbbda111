"""Named barriers, cluster barriers and mbarrier instructions."""

from __future__ import annotations

import re

import numpy as np

from . import mbarrier
from .codegen import Emitter, step
from .control_ops import NOT_CONVERGED
from .errors import EmulationError
from .numeric import u4, u8
from .ptx import Instruction
from .state import NamedBarrier
from .warp import Warp

# Named barriers ------------------------------------------------------------------------------------------------------


@step(
    r"bar(?:rier)?(?:\.cta)?\.(?P<kind>sync|arrive)(?:\.aligned)?",
    r"bar(?:rier)?(?:\.cta)?\.(?P<kind>red)(?:\.aligned)?\.(?P<op>popc\.u32|and\.pred|or\.pred)",
)
def _named(e: Emitter, i: Instruction, m: re.Match):
    kind, op = m["kind"], m.groupdict().get("op")
    operands = list(i.operands)
    register = predicate = None
    if kind == "red":
        register, value = e.destination(operands.pop(0)), operands.pop()
        predicate = e.compile(e.source(value, "pred"))
    if not 1 <= len(operands) <= 2 or (kind == "arrive" and len(operands) == 1):
        raise i.unsupported("operands of the barrier")
    codes = e.compile(*(e.source(x, "u32") for x in operands))

    def body(w: Warp, lanes: np.ndarray):
        if not w.converged(lanes, 0xFFFFFFFF):
            return NOT_CONVERGED
        values = [int(v[int(np.argmax(lanes))]) for v in codes(w)]
        number, count = values[0], values[1] if len(values) == 2 else None
        if number >= 16 or (count is not None and (count % 32 or not count)):
            raise EmulationError(
                "barrier", f"barrier {number} with thread count {count}"
            )
        barrier = w.cta.barriers.setdefault(number, NamedBarrier())
        checker = w.machine.checker
        key = ("barrier", i.pc)
        if key not in w.step_state:
            _arrive_named(
                w,
                barrier,
                number,
                count,
                predicate(w)[0][lanes] if predicate else None,
                lanes,
            )
            if kind == "arrive":
                return None
            w.step_state[key] = (
                barrier.generation if barrier.arrived else barrier.generation - 1
            )
        joined = w.step_state[key]
        if barrier.generation == joined:
            return f"barrier {number} ({barrier.arrived} of {barrier.expected} threads arrived)"
        del w.step_state[key]
        if checker is not None:
            checker.acquire(w, lanes, barrier.published)
            checker.warp_sync(w, lanes)
        if register is not None:
            votes = barrier.result[joined]
            result = {
                "popc.u32": votes.sum(),
                "and.pred": votes.all(),
                "or.pred": votes.any(),
            }[op]
            w.set(
                register, np.full(32, result, u4 if op == "popc.u32" else bool), lanes
            )
        return None

    return body


def _arrive_named(
    w: Warp, barrier: NamedBarrier, number: int, count, votes, lanes
) -> None:
    expected = count if count is not None else w.cta.live_warps * 32
    if barrier.arrived and barrier.expected != expected and count is not None:
        raise EmulationError(
            "barrier",
            f"barrier {number}: thread count {expected}, the others gave {barrier.expected}",
        )
    checker = w.machine.checker
    if checker is not None:
        barrier.collected = checker.publish(w, lanes, barrier.collected)
    barrier.expected = expected
    barrier.implicit = count is None
    barrier.arrived += 32
    barrier.reduction.append(votes)
    w.machine.progress += 1
    complete_named(w.cta, barrier)
    if barrier.arrived > barrier.expected:
        raise EmulationError(
            "barrier",
            f"barrier {number}: {barrier.arrived} arrivals of {barrier.expected}",
        )


def complete_named(cta, barrier: NamedBarrier) -> None:
    if not barrier.arrived or barrier.arrived != barrier.expected:
        return
    barrier.arrived = 0
    barrier.published, barrier.collected = barrier.collected, None
    if barrier.reduction[0] is not None:
        barrier.result = {barrier.generation: np.concatenate(barrier.reduction)}
    barrier.reduction = []
    barrier.generation += 1
    cta.cluster.wake()


# Cluster barrier -----------------------------------------------------------------------------------------------------


@step(r"barrier\.cluster\.arrive(?:\.(?P<sem>release|relaxed))?(?:\.aligned)?")
def _cluster_arrive(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not w.converged(lanes, 0xFFFFFFFF):
            return NOT_CONVERGED
        barrier = w.cta.cluster.barrier
        if w.step_state.get("cluster") is not None:
            raise EmulationError(
                "barrier", "second barrier.cluster.arrive without a wait between"
            )
        w.step_state["cluster"] = barrier.generation
        if w.machine.checker is not None:
            barrier.collected = w.machine.checker.publish(
                w, lanes, barrier.collected, init_only=m["sem"] == "relaxed"
            )
        barrier.arrived += 1
        w.machine.progress += 1
        complete_cluster(w.cta.cluster)
        return None

    return body


def complete_cluster(cluster) -> None:
    barrier = cluster.barrier
    if barrier.arrived and barrier.arrived == cluster.live_warps:
        barrier.arrived = 0
        barrier.generation += 1
        barrier.published, barrier.collected = barrier.collected, None
        cluster.wake()


@step(r"barrier\.cluster\.wait(?:\.(?P<sem>acquire))?(?:\.aligned)?")
def _cluster_wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not w.converged(lanes, 0xFFFFFFFF):
            return NOT_CONVERGED
        cluster = w.cta.cluster
        joined = w.step_state.get("cluster")
        if joined is None:
            raise EmulationError("barrier", "barrier.cluster.wait without an arrive")
        if cluster.barrier.generation == joined:
            return f"the cluster barrier ({cluster.barrier.arrived} of {cluster.live_warps} warps arrived)"
        w.step_state["cluster"] = None
        if w.machine.checker is not None:
            w.machine.checker.acquire(w, lanes, cluster.barrier.published)
            w.machine.checker.warp_sync(w, lanes)
        return None

    return body


# mbarrier ------------------------------------------------------------------------------------------------------------

SPACE = r"(?:\.(?P<space>shared(?:::(?:cta|cluster))?))?"
ORDER = r"(?:\.(?P<sem>release|acquire|relaxed)\.(?P<scope>cta|cluster))?"


def barrier_address(w: Warp, space: str | None, address: int) -> int:
    """A shared::cluster address from an operand in the given state space or generic."""
    if space is None:
        from .memory import SHARED_WINDOW, WINDOW_BYTES

        if not SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
            raise EmulationError(
                "mbarrier", f"generic address {address:#x} is not shared memory"
            )
        address -= SHARED_WINDOW
    return address


@step(rf"mbarrier\.init{SPACE}\.b64")
def _init(e: Emitter, i: Instruction, m: re.Match):
    e.expect(2)
    codes = e.compile(e.address(i.operands[0]), e.source(i.operands[1], "u32"))

    def body(w: Warp, lanes: np.ndarray):
        address, count = codes(w)
        for lane in np.nonzero(lanes)[0]:
            cta, offset = w.cta.shared_of(
                barrier_address(w, m["space"], int(address[lane]))
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
                w.cta, barrier_address(w, m["space"], int(codes(w)[0][lane]))
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
            barrier = mbarrier.find(w.cta, barrier_address(w, m["space"], where))
            token[group] = barrier.phase
            if checker is not None:
                members = np.isin(np.arange(32), group)
                checker.mbarrier_use(w, group[0], barrier, i.pc)
                if m["sem"] != "relaxed":
                    barrier.collected = checker.publish(w, members, barrier.collected)
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
                w.cta, barrier_address(w, m["space"], int(address[lane]))
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
            barrier = mbarrier.find(w.cta, barrier_address(w, m["space"], key[0]))
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
                    published = barrier.published[key[1] & 1]
                    machine.checker.acquire(w, same, published)
            else:
                waits = f"parity {key[1]} of {barrier.describe()}"
        if waits and m["what"] == "try_wait" and not machine.time_out_now(w):
            return waits
        w.set(register, done, lanes)
        return None

    return body
