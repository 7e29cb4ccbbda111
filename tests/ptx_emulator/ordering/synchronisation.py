"""Releases, acquires, fences and mbarrier initialisation: how clocks travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .accesses import Accesses
from .clocks import (
    ALIAS,
    ALL,
    ASYNC_GLOBAL,
    ASYNC_SHARED,
    INIT,
    PUBLISHED,
    TENSOR_OUT,
    ReleaseFence,
    join,
    widen,
)  # fmt: skip
from .strong import inclusive, narrower, place_of

if TYPE_CHECKING:
    from ptx_emulator.mbarrier import Mbarrier
    from ptx_emulator.warp import Warp


class Synchronisation(Accesses):
    def publish(
        self,
        w: Warp,
        lanes: np.ndarray,
        into: np.ndarray | None,
        init_only: bool = False,
    ) -> np.ndarray:
        """Joins what the lanes know and did into `into`: the half that releases."""
        rows = None
        for g in w.clocks.groups:
            if np.count_nonzero(g.lanes & lanes):
                rows = join(rows, g.rows[:PUBLISHED])
        rows = self.with_own(w, lanes, rows)
        if init_only:
            rows[[ALL, ASYNC_SHARED, ASYNC_GLOBAL, ALIAS, TENSOR_OUT]] = 0
        return join(into, rows)

    def with_own(self, w: Warp, lanes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Adds the accesses of the lanes themselves, up to now."""
        c = w.clocks
        now = c.tick()
        everyone = not np.count_nonzero(w.exists & ~lanes)
        alone = lanes & (self.lane_agents[c.agent] > 0) if everyone else lanes
        agents = {int(k): self.lane_agent(w, int(k)) for k in np.nonzero(alone)[0]}
        rows = widen(rows, self.capacity)
        if everyone:
            _own_entry(rows, c.agent, now, c.fenced[:, lanes].min(1))
        for lane, agent in agents.items():
            _own_entry(rows, agent, now, c.fenced[:, lane])
        return rows

    def acquire(self, w: Warp, lanes: np.ndarray, rows: np.ndarray | None) -> None:
        """The lanes learn what was published: the half that acquires."""
        if rows is not None:
            for g in w.clocks.of(lanes & ~w.exited):
                g.rows = join(g.rows, rows)

    def warp_sync(self, w: Warp, lanes: np.ndarray) -> None:
        """The lanes learn what each of them knew and did."""
        c = w.clocks
        inside = c.of(lanes & ~w.exited)
        if not inside:
            return
        first = inside[0]
        for g in inside[1:]:
            first.rows = join(first.rows, g.rows)
            first.lanes = first.lanes | g.lanes
        c.groups = [first, *(g for g in c.groups if not any(g is h for h in inside))]
        self._single_out(w, first.lanes)
        first.rows = self.with_own(w, first.lanes, first.rows)

    def _single_out(self, w: Warp, lanes: np.ndarray) -> None:
        """Gives lanes that act without the rest of their warp agents of their own."""
        if np.count_nonzero(w.exists & ~lanes):
            for lane in np.nonzero(lanes)[0]:
                self.lane_agent(w, int(lane))

    def fence(self, w: Warp, lanes: np.ndarray, sem: str, scope: str) -> None:
        """fence: acquires what relaxed loads have seen, releases for relaxed stores."""
        c = w.clocks
        if sem in ("acq_rel", "acquire"):
            place = place_of(w)
            for lane in np.nonzero(lanes)[0]:
                for released, load_scope in c.observed[lane].values():
                    reach = narrower(scope, load_scope)
                    if inclusive(released.place, released.scope, place, reach):
                        self.acquire(w, np.arange(32) == lane, released.rows)
                c.observed[lane].clear()
        if sem in ("acq_rel", "release"):
            for g in c.groups:
                members = np.nonzero(g.lanes & lanes)[0]
                if members.size:
                    known = g.rows[:PUBLISHED].copy()
                    fence = ReleaseFence(known, c.clock, c.fenced.copy(), scope)
                    for lane in members:
                        c.released[lane] = fence
            c.tick()

    def fenced_rows(self, w: Warp, lane: int) -> np.ndarray:
        """What the lane's last release fence covers: what it knew, and its own accesses."""
        fence = w.clocks.released[lane]
        rows = widen(fence.rows.copy(), self.capacity)
        _own_entry(rows, self.lane_agent(w, lane), fence.when, fence.fenced[:, lane])
        return rows

    def proxy_fence(self, w: Warp, lanes: np.ndarray, proxy: str, space: str) -> None:
        """fence.proxy.alias, or .async for a state space or for all."""
        by_space = {"global": (ASYNC_GLOBAL,), "shared": (ASYNC_SHARED,)}
        rows = by_space.get(space, (ASYNC_SHARED, ASYNC_GLOBAL))
        self._fence_rows(w, lanes, (ALIAS,) if proxy == "alias" else rows)
        if proxy == "async":
            _fence_inits(w, lanes)

    def init_fence(self, w: Warp, lanes: np.ndarray) -> None:
        """fence.mbarrier_init."""
        self._fence_rows(w, lanes, (INIT,))
        _fence_inits(w, lanes)

    def _fence_rows(self, w: Warp, lanes: np.ndarray, rows: tuple[int, ...]) -> None:
        c = w.clocks
        for g in c.of(lanes & ~w.exited):
            for row in rows:
                np.maximum(g.rows[row], g.rows[ALL], out=g.rows[row])
        self._single_out(w, lanes)
        now = c.tick()
        for row in rows:
            c.fenced[row, lanes] = now

    def mbarrier_init(self, w: Warp, lane: int, barrier: Mbarrier, pc: int) -> None:
        c = w.clocks
        self.lane_agent(w, lane)  # its fence counts, whenever the others run theirs
        barrier.initialised = (c.agent, lane, c.clock, self.site(w, pc))
        barrier.known = set()
        c.initialised.append((lane, barrier))

    def mbarrier_use(
        self,
        w: Warp,
        lane: int,
        barrier: Mbarrier,
        pc: int,
        asynchronous: bool = False,
    ) -> None:
        """Initialisation comes before use, fenced where the use is remote or async."""
        agent, owner, when, first = barrier.initialised
        key = (w.clocks.agent, lane)
        remote = barrier.cta is not w.cta
        if (asynchronous or remote) and not barrier.fenced:
            note = f"{barrier.name} is used before fence.mbarrier_init"
            self.report("mbarrier", first, owner, self.site(w, pc), lane, note)
            barrier.fenced = True
        if key in barrier.known:
            return
        barrier.known.add(key)
        rows = widen(w.clocks.group_of(lane).rows, self.capacity)
        known = max(
            rows[row, a]
            for row in (ALL, INIT)
            for a in (agent, self.lane_agents[agent, owner])
        )
        if key != (agent, owner) and known < when:
            note = f"use of {barrier.name} is not ordered after its init"
            self.report("mbarrier", first, owner, self.site(w, pc), lane, note)

    def mbarrier_arrive(
        self, w: Warp, lanes: np.ndarray, barrier: Mbarrier, scope: str | None
    ) -> None:
        """A releasing arrival; one of CTA scope says nothing to another CTA."""
        rows = self.publish(w, lanes, None)
        if barrier.cta is w.cta or scope is None:
            barrier.collected = join(barrier.collected, rows)
        elif scope == "cluster":
            barrier.collected_afar = join(barrier.collected_afar, rows)

    def mbarrier_wait(
        self,
        w: Warp,
        lanes: np.ndarray,
        barrier: Mbarrier,
        phase: int,
        scope: str | None,
    ) -> None:
        """An acquiring wait that has succeeded."""
        self.acquire(w, lanes, barrier.published[phase])
        if scope != "cta":
            self.acquire(w, lanes, barrier.published_afar[phase])


def _own_entry(rows: np.ndarray, agent: int, now: int, fenced: np.ndarray) -> None:
    rows[ALL, agent] = now
    for row in (ASYNC_SHARED, ASYNC_GLOBAL, ALIAS, INIT):
        rows[row, agent] = max(rows[row, agent], fenced[row])


def _fence_inits(w: Warp, lanes: np.ndarray) -> None:
    for lane, barrier in w.clocks.initialised:
        if lanes[lane]:
            barrier.fenced = True
    w.clocks.initialised = [x for x in w.clocks.initialised if not lanes[x[0]]]
