"""The ordering checker: is every pair of conflicting accesses ordered as PTX demands?

Execution is sequentially consistent; the checker decides whether it had to be. The
rules, and what is left out, are in the emulator's README.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .accesses import Access
from .asynchronous import AsynchronousOrder
from .clocks import ALIAS, ALL, FOREVER, ROWS, WarpClocks, join, widen
from .shadow import Shadow
from .strong import Location, StrongAccess, inclusive, narrower, place_of

if TYPE_CHECKING:
    from ptx_emulator.addressing import Part
    from ptx_emulator.machine import Machine
    from ptx_emulator.state import Launch
    from ptx_emulator.warp import Warp


class Checker(AsynchronousOrder):
    def __init__(self, machine: Machine):
        super().__init__(machine)
        self.streams = [np.zeros((1, self.capacity), np.int32)] * machine.ranks

    # Life of runs, launches and warps ------------------------------------------------

    def begin(self, on_race: str) -> None:
        """A run starts: the host has waited for everything before it."""
        if on_race not in ("raise", "collect"):
            raise ValueError(f"on_race {on_race!r}, expected 'raise' or 'collect'")
        self.raise_reports = on_race == "raise"
        self.reports, self._seen = [], set()
        known = np.zeros((1, self.capacity), np.int32)
        known[0, : self.agents] = FOREVER
        self.streams = [known.copy() for _ in self.streams]

    def start_warp(self, w: Warp, launch: Launch) -> None:
        """A warp knows what its stream did before; a kernel boundary fences it all."""
        agent = self.agent(launch)
        known = widen(self.streams[launch.rank], self.capacity)
        w.clocks = WarpClocks(agent, w.exists, np.repeat(known, ROWS, axis=0))

    def end_warp(self, w: Warp) -> None:
        for g in w.clocks.groups:
            w.cta.launch.clocks = join(w.cta.launch.clocks, g.rows[:1])

    def end_launch(self, launch: Launch) -> None:
        """All that the launch did is visible to the next launch of its rank."""
        known = join(widen(self.streams[launch.rank], self.capacity), launch.clocks)
        known[0, launch.agents] = FOREVER
        self.streams[launch.rank] = known

    # Strong accesses -----------------------------------------------------------------

    def strong(
        self,
        w: Warp,
        lanes: np.ndarray,
        part: Part,
        size: int,
        kind: str,
        sem: str,
        scope: str,
        pc: int,
    ) -> None:
        """A relaxed, acquire or release "read", "write" or "update" of some lanes.

        Strong accesses do not race among themselves where their scopes include each
        other; with weak accesses they do.
        """
        shadow = self.shadow_of(part.memory)
        granules = shadow.granules(part.offsets, size)
        shadow.mark_sync(granules)
        write, site, place = kind != "read", self.site(w, pc), place_of(w)
        self._against_weak(w, lanes, shadow, granules, part.path, site, write)
        places = zip(lanes.tolist(), part.offsets.tolist(), strict=True)
        for lane, offset in places:
            location = shadow.location(offset, size)
            access = StrongAccess(
                w.clocks.agent, lane, w.clocks.clock, place, scope, write, site, part.path
            )  # fmt: skip
            self._against_other_scopes(w, location, access)
            if len(shadow.strong_sizes) > 1:
                for other in shadow.overlapping(offset, offset + size):
                    if other is not location:
                        self._against_other_size(w, other, access)
            location.note(access)
            self._order(w, location, access, kind, sem)

    def _against_weak(
        self, w: Warp, lanes, shadow: Shadow, granules, path: int, site: int, write
    ) -> None:
        """Strong accesses still need order with the weak accesses of others."""
        mixed = shadow.paths | 1 << path == 3
        for g in w.clocks.groups:
            mine = np.nonzero(g.lanes[lanes])[0]
            if not mine.size:
                continue
            access = self._of_lanes(w, g, lanes[mine], path, site)
            self._check(shadow, "writer", granules[mine], access, mixed)
            if write:
                self._check_readers(shadow, granules[mine], access, mixed)

    def against_strong(
        self, access: Access, shadow: Shadow, granules: np.ndarray, write: bool
    ) -> None:
        """A weak or asynchronous access against strong ones: ordered, or both reads."""
        granules = np.atleast_2d(granules)
        touched = np.nonzero(shadow.sync[granules].any(1))[0]
        for n in touched:
            low = int(granules[n, 0]) << shadow.shift
            high = (int(granules[n, -1]) + 1) << shadow.shift
            lane = None if access.lanes is None else int(access.lanes[n])
            for location in shadow.overlapping(low, high):
                for entry in location.accesses.values():
                    if write or entry.write:
                        self._weak_after_strong(access, lane, entry)

    def _weak_after_strong(self, access: Access, lane: int | None, entry) -> None:
        agent, rows = access.agent, access.rows
        if not self._covers(rows[ALL], agent, lane, entry):
            kind = "race"
        elif not self._covers(rows[access.generic], agent, lane, entry):
            kind = "proxy"
        elif entry.path == access.path or self._covers(rows[ALIAS], 0, None, entry):
            return
        else:
            kind = "alias"
        note = "a strong and a weak access to one location"
        self.report(kind, entry.site, entry.lane, access.site, lane, note)

    def _covers(self, row: np.ndarray, agent: int, lane: int | None, entry) -> bool:
        if entry.agent == agent and entry.lane == lane:
            return True
        single = self.lane_agents[entry.agent, entry.lane]
        return max(row[entry.agent], row[single] if single else 0) >= entry.when

    def _against_other_scopes(self, w: Warp, location: Location, access) -> None:
        narrow = [
            (place, scope, write)
            for place, scope, write in location.kinds
            if (access.write or write)
            and not inclusive(place, scope, access.place, access.scope)
        ]
        if not narrow:
            return
        rows = widen(w.clocks.group_of(access.lane).rows, self.capacity)
        for entry in location.accesses.values():
            kind = (entry.place, entry.scope, entry.write)
            if kind in narrow and not self._covers(
                rows[ALL], access.agent, access.lane, entry
            ):
                note = f".{entry.scope} and .{access.scope} do not include each other"
                self.report(
                    "scope", entry.site, entry.lane, access.site, access.lane, note
                )

    def _against_other_size(self, w: Warp, location: Location, access) -> None:
        """Strong accesses order each other only where they overlap completely."""
        rows = widen(w.clocks.group_of(access.lane).rows, self.capacity)
        for entry in location.accesses.values():
            writes = access.write or entry.write
            if writes and not self._covers(rows[ALL], access.agent, access.lane, entry):
                note = "strong accesses of different sizes"
                self.report(
                    "race", entry.site, entry.lane, access.site, access.lane, note
                )

    def _order(self, w: Warp, location: Location, access, kind: str, sem: str) -> None:
        """Acquires what the location has, then releases to it."""
        c, lane = w.clocks, access.lane
        only = np.arange(32) == lane
        if kind != "write":
            for released in location.releases.values():
                if not inclusive(
                    released.place, released.scope, access.place, access.scope
                ):
                    continue
                if sem in ("acquire", "acq_rel"):
                    self.acquire(w, only, released.rows)
                else:
                    c.observed[lane][id(released)] = (released, access.scope)
        if kind == "read":
            return
        if kind == "write":
            location.releases.clear()
        if sem in ("release", "acq_rel"):
            rows = self.publish(w, only, None)
            location.release(access.place, access.scope, rows)
        elif c.released[lane] is not None:
            scope = narrower(access.scope, c.released[lane].scope)
            location.release(access.place, scope, self.fenced_rows(w, lane))
