"""Asynchronous operations: copies, bulk groups, matrix pipes, tensor memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .accesses import Access
from .clocks import ALL, PUBLISHED, ROWS, TENSOR, TENSOR_OUT, join, widen
from .shadow import SEVERAL, Shadow
from .synchronisation import Synchronisation

if TYPE_CHECKING:
    from ptx_emulator.mbarrier import Mbarrier
    from ptx_emulator.warp import Warp

TENSOR_COLUMNS = 512
TENSOR_STRIPES = 8


class AsyncOp:
    """An operation in flight: what its issuer knew, and the pipe that stands for it."""

    def __init__(
        self,
        rows: np.ndarray,
        site: int,
        agents: tuple[int, ...],
        when: int,
        flag: Mbarrier | None = None,
        in_order: bool = False,
    ):
        self.rows = rows
        self.site = site
        self.agents = agents
        self.flag = flag
        self.in_order = in_order
        self._when = when

    @property
    def when(self) -> int:
        """A copy that signals an mbarrier belongs to the phase in which it lands."""
        return self.flag.phase + 1 if self.flag is not None else self._when


class AsynchronousOrder(Synchronisation):
    def _knowledge(self, w: Warp, lane: int, rows: int = PUBLISHED) -> np.ndarray:
        own = w.clocks.group_of(lane).rows[:rows].copy()
        return self.with_own(w, np.arange(32) == lane, own)

    def issue(self, w: Warp, lane: int, flag: Mbarrier, pc: int) -> AsyncOp:
        """A copy that signals `flag`."""
        if flag.agent is None:
            flag.agent = self.agent(flag.cta.launch)
        self.mbarrier_use(w, lane, flag, pc, asynchronous=True)
        rows = self._knowledge(w, lane)
        return AsyncOp(rows, self.site(w, pc), (flag.agent,), 0, flag)

    def complete(self, flag: Mbarrier) -> None:
        """The copy signals its mbarrier.

        That orders the copy alone, not what its issuer did before it (PTX ISA, program
        order of asynchronous operations).
        """
        rows = np.zeros((PUBLISHED, self.capacity), np.int32)
        rows[ALL, flag.agent] = flag.phase + 1
        flag.collected = join(flag.collected, rows)

    def issue_bulk(self, w: Warp, lane: int, groups, pc: int) -> AsyncOp:
        """A copy of a bulk group: one pipe for source reads, one for completion."""
        rows = self._knowledge(w, lane)
        return AsyncOp(rows, self.site(w, pc), groups.agents, groups.committed + 1)

    def bulk_done(self, w: Warp, lane: int, groups, upto: int, read_only: bool) -> None:
        """wait_group: groups up to number `upto` have read, or unless `.read` written."""
        if upto <= 0:
            return
        agents = groups.agents[:1] if read_only else groups.agents
        for g in w.clocks.of(np.arange(32) == lane):
            g.rows = widen(g.rows, self.capacity)
            for agent in agents:
                g.rows[ALL, agent] = max(g.rows[ALL, agent], upto)

    def issue_pipe(
        self,
        w: Warp,
        lanes: np.ndarray,
        agent: int,
        when: int,
        pc: int,
        op: AsyncOp | None,
    ) -> AsyncOp:
        """A warpgroup operation: joins what each of its warps knows."""
        rows = self.publish(w, lanes, None)
        if op is None:
            return AsyncOp(rows, self.site(w, pc), (agent,), when, in_order=True)
        op.rows = join(op.rows, rows)
        return op

    def pipe_done(self, w: Warp, lanes: np.ndarray, agent: int, upto: int) -> None:
        """wgmma.wait_group."""
        for g in w.clocks.of(lanes & ~w.exited):
            g.rows = widen(g.rows, self.capacity)
            g.rows[ALL, agent] = max(g.rows[ALL, agent], upto)

    # Tensor memory ----------------------------------------------------------------

    def issue_tensor(
        self, w: Warp, lane: int, agent: int, when: int, pc: int
    ) -> AsyncOp:
        """tcgen05.mma or commit by one thread."""
        rows = self._knowledge(w, lane, ROWS)
        return AsyncOp(rows, self.site(w, pc), (agent,), when, in_order=True)

    def complete_tensor(self, op: AsyncOp, flag: Mbarrier) -> None:
        """tcgen05.commit: implies the fence before the thread synchronisation."""
        rows = widen(op.rows[:PUBLISHED].copy(), self.capacity)
        rows[[ALL, TENSOR_OUT], op.agents[0]] = op.when
        flag.collected = join(flag.collected, rows)

    def tensor(self, w: Warp, tensor, stripes, columns, write: bool, pc: int) -> None:
        """tcgen05.ld or st, asynchronous until its wait."""
        self._tensor_by_warp(w, tensor, stripes, columns, write, pc, self.tensor_row)

    def tensor_free(self, w: Warp, tensor, columns: np.ndarray, pc: int) -> None:
        """tcgen05.dealloc: after every access; the allocator orders the next owner."""
        stripes = np.arange(TENSOR_STRIPES)
        self._tensor_by_warp(w, tensor, stripes, columns, True, pc, ALL)
        self.tensor_wait(w, ~w.exited, "st")
        tensor.shadow.forget(_tensor_granules(tensor, stripes, columns))

    def _tensor_by_warp(self, w, tensor, stripes, columns, write, pc, row) -> None:
        c = w.clocks
        what = "st" if write else "ld"
        if what not in c.tensor_agents:
            c.tensor_agents[what] = self.agent(w.cta.launch)
            c.tensor_counts[what] = 0
        c.tensor_counts[what] += 1
        rows = widen(c.groups[0].rows, self.capacity)
        who = c.tensor_agents[what] << 8 | SEVERAL << 2
        when = c.tensor_counts[what]
        access = Access(rows, row, row, who, when, self.site(w, pc))
        granules = _tensor_granules(tensor, stripes, columns)
        self.tensor_access(tensor, granules, write, access)

    def tensor_async(self, op: AsyncOp, tensor, stripes, columns, write: bool) -> None:
        """An MMA reads or writes its accumulator."""
        agent, row = op.agents[0], self.tensor_row
        rows = widen(op.rows, self.capacity)
        who = agent << 8 | SEVERAL << 2
        access = Access(rows, row, row, who, op.when, op.site, pipe=agent)
        granules = _tensor_granules(tensor, stripes, columns)
        self.tensor_access(tensor, granules, write, access)

    def tensor_wait(self, w: Warp, lanes: np.ndarray, what: str) -> None:
        """tcgen05.wait."""
        c = w.clocks
        if what not in c.tensor_agents:
            return
        for g in c.of(lanes & ~w.exited):
            g.rows = widen(g.rows, self.capacity)
            g.rows[[ALL, TENSOR], c.tensor_agents[what]] = c.tensor_counts[what]

    def tensor_fence(self, w: Warp, lanes: np.ndarray, side: str) -> None:
        """tcgen05.fence::before_thread_sync or ::after_thread_sync."""
        c = w.clocks
        for g in c.of(lanes & ~w.exited):
            g.rows = widen(g.rows, self.capacity)
            if side == "after":
                np.maximum(g.rows[TENSOR], g.rows[TENSOR_OUT], out=g.rows[TENSOR])
                continue
            for agent in c.tensor_agents.values():
                known = max(g.rows[TENSOR_OUT, agent], g.rows[TENSOR, agent])
                g.rows[TENSOR_OUT, agent] = known


def _tensor_granules(tensor, stripes: np.ndarray, columns: np.ndarray) -> np.ndarray:
    if tensor.shadow is None:
        tensor.shadow = Shadow(4 * TENSOR_STRIPES * TENSOR_COLUMNS)
    return stripes[:, None] * TENSOR_COLUMNS + columns
