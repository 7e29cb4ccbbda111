"""Bulk groups of a thread, and the two halves of a store: source read, global write."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.mbarrier import Mbarrier
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp

ISSUED, READ, DONE = range(3)


class BulkGroups:
    """Operations not yet committed, and committed groups in order.

    An operation is a list with its stage: ISSUED, READ (of its source) or DONE.
    """

    def __init__(self, w: Warp):
        checker, launch = w.machine.checker, w.cta.launch
        self.open: list[list[int]] = []
        self.groups: list[list[list[int]]] = []
        self.committed = 0
        self.agents = None  # of the source reads, and of the whole operations
        if checker is not None:
            self.agents = checker.agent(launch), checker.agent(launch)

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []
        self.committed += 1

    def pending(self, stage: int) -> int:
        """Groups from the oldest one with an operation before `stage` to the newest."""
        for age, group in enumerate(self.groups):
            if any(op[0] < stage for op in group):
                return len(self.groups) - age
        return 0

    def forget_done(self) -> None:
        while self.groups and all(op[0] == DONE for op in self.groups[0]):
            self.groups.pop(0)


def bulk_groups(w: Warp, lane: int) -> BulkGroups:
    if lane not in w.bulk_groups:
        w.bulk_groups[lane] = BulkGroups(w)
    return w.bulk_groups[lane]


class Store(Protocol):
    """A copy out of shared memory; `op` is the checker's view of it."""

    def read(self, op) -> None: ...
    def write(self, op) -> None: ...


def post_store(w: Warp, lane: int, pc: int, store: Store) -> None:
    """Issues a store: its two halves happen at times of the scheduler's choice."""
    machine, cluster = w.machine, w.cta.cluster
    groups = bulk_groups(w, lane)
    state = [ISSUED]
    groups.open.append(state)
    op = None
    if machine.checker is not None:
        op = machine.checker.issue_bulk(w, lane, groups, pc)

    def write() -> None:
        store.write(op)
        state[0] = DONE
        cluster.wake()

    def read() -> None:
        store.read(op)
        state[0] = READ
        cluster.wake()
        machine.post(cluster, write, pc, w, late=True)

    machine.post(cluster, read, pc, w)


def complete_bytes(barrier: Mbarrier, count: int) -> None:
    """The complete_tx of a copy that signals an mbarrier."""
    checker = barrier.cta.launch.machine.checker
    if checker is not None:
        checker.complete(barrier)
    barrier.complete(count)


@step(r"cp\.async\.bulk\.commit_group")
def _commit(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0]:
            bulk_groups(w, int(lane)).commit()

    return body


@step(r"cp\.async\.bulk\.wait_group(?P<read>\.read)?")
def _wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    limit, read_only = int(i.operands[0], 0), bool(m["read"])
    stage = READ if read_only else DONE

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0].tolist():
            groups = bulk_groups(w, lane)
            pending = groups.pending(stage)
            if pending > limit:
                return (
                    f"bulk groups of lane {lane} ({pending} pending, {limit} allowed)"
                )
            if w.machine.checker is not None:
                upto = groups.committed - limit
                w.machine.checker.bulk_done(w, lane, groups, upto, read_only)
            groups.forget_done()
        return None

    return body
