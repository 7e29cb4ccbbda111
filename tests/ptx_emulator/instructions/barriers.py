"""Named barriers and the cluster barrier."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.numeric import u4
from ptx_emulator.ptx import Instruction
from ptx_emulator.state import Meeting, NamedBarrier
from ptx_emulator.warp import Warp

from .control import NOT_CONVERGED, all_lanes


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
        if not all_lanes(w, lanes):
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
            votes = predicate(w)[0][lanes] if predicate else None
            meeting = _arrive_named(w, barrier, number, count, votes, lanes)
            if kind == "arrive":
                return None
            w.step_state[key] = meeting
        meeting = w.step_state[key]
        if not meeting.done:
            return f"barrier {number} ({barrier.arrived} of {barrier.expected} threads arrived)"
        del w.step_state[key]
        if checker is not None:
            checker.acquire(w, lanes, meeting.collected)
            checker.warp_sync(w, lanes)
        if register is not None:
            votes = np.concatenate(meeting.votes)
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
) -> Meeting:
    expected = count if count is not None else w.cta.live_warps * 32
    if barrier.arrived and barrier.expected != expected and count is not None:
        raise EmulationError(
            "barrier",
            f"barrier {number}: thread count {expected}, the others gave {barrier.expected}",
        )
    meeting = barrier.meeting
    if meeting.votes and (meeting.votes[0] is None) != (votes is None):
        raise EmulationError(
            "barrier", f"barrier {number}: bar.red meets bar.sync or bar.arrive"
        )
    checker = w.machine.checker
    if checker is not None:
        meeting.collected = checker.publish(w, lanes, meeting.collected)
    barrier.expected = expected
    barrier.implicit = count is None
    barrier.arrived += 32
    meeting.votes.append(votes)
    w.machine.progress += 1
    complete_named(w.cta, barrier)
    if barrier.arrived > barrier.expected:
        raise EmulationError(
            "barrier",
            f"barrier {number}: {barrier.arrived} arrivals of {barrier.expected}",
        )
    return meeting


def complete_named(cta, barrier: NamedBarrier) -> None:
    if not barrier.arrived or barrier.arrived != barrier.expected:
        return
    barrier.complete()
    cta.cluster.wake()


@step(r"barrier\.cluster\.arrive(?:\.(?P<sem>release|relaxed))?(?:\.aligned)?")
def _cluster_arrive(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not all_lanes(w, lanes):
            return NOT_CONVERGED
        barrier = w.cta.cluster.barrier
        if w.step_state.get("cluster") is not None:
            raise EmulationError(
                "barrier", "second barrier.cluster.arrive without a wait between"
            )
        meeting = w.step_state["cluster"] = barrier.meeting
        if w.machine.checker is not None:
            meeting.collected = w.machine.checker.publish(
                w, lanes, meeting.collected, init_only=m["sem"] == "relaxed"
            )
        barrier.arrived += 1
        w.machine.progress += 1
        complete_cluster(w.cta.cluster)
        return None

    return body


def complete_cluster(cluster) -> None:
    barrier = cluster.barrier
    if barrier.arrived and barrier.arrived == cluster.live_warps:
        barrier.complete()
        cluster.has_met = True
        cluster.wake()


@step(r"barrier\.cluster\.wait(?:\.(?P<sem>acquire))?(?:\.aligned)?")
def _cluster_wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if not all_lanes(w, lanes):
            return NOT_CONVERGED
        cluster = w.cta.cluster
        meeting = w.step_state.get("cluster")
        if meeting is None:
            raise EmulationError("barrier", "barrier.cluster.wait without an arrive")
        if not meeting.done:
            return f"the cluster barrier ({cluster.barrier.arrived} of {cluster.live_warps} warps arrived)"
        w.step_state["cluster"] = None
        if w.machine.checker is not None:
            w.machine.checker.acquire(w, lanes, meeting.collected)
            w.machine.checker.warp_sync(w, lanes)
        return None

    return body
