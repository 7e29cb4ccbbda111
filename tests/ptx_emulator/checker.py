"""The ordering checker: is every pair of conflicting accesses ordered by synchronisation that PTX accepts?

Execution is sequentially consistent; the checker decides whether it had to be. It follows happens-before with scopes, proxies (generic,
asynchronous, multicast alias) and tcgen05 fences. See README.md for the rules and for what is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .clocks import (
    ALIAS, ALL, ASYNC_GLOBAL, ASYNC_SHARED, FOREVER, INIT, PUBLISHED, ROWS, TENSOR, TENSOR_OUT, WarpClocks, join, widen,
)  # fmt: skip
from .errors import EmulationError, Report
from .shadow import ASYNCHRONOUS, MULTICAST_PATH, SEVERAL, ReaderSets, Shadow
from .strong import Location, inclusive

if TYPE_CHECKING:
    from .machine import Machine
    from .mbarrier import Mbarrier
    from .memory import Bytes
    from .state import Launch
    from .warp import Warp

TENSOR_COLUMNS = 512
TENSOR_STRIPES = 8
MAX_REPORTS = 200
LANE_BITS = np.arange(32, dtype=np.int64)


class AsyncOp:
    """An asynchronous operation: what its issuer knew, and the pipe entry that stands for it."""

    def __init__(
        self,
        rows: np.ndarray,
        site: int,
        agents: tuple[int, ...],
        when: int,
        flag: Mbarrier | None = None,
    ):
        self.rows = rows
        self.site = site
        self.agents = agents
        self._when = when
        self.flag = flag
        self.in_order = False

    @property
    def when(self) -> int:
        """A copy that signals an mbarrier belongs to the phase in which it lands."""
        return self.flag.phase + 1 if self.flag is not None else self._when


class Checker:
    def __init__(self, machine: Machine):
        self.machine = machine
        self.capacity = 256
        self.agents = 1
        self.lane_agents = np.zeros((self.capacity, 32), np.int32)
        self.streams = [
            np.zeros((1, self.capacity), np.int32) for _ in range(machine.ranks)
        ]
        self.readers = ReaderSets()
        self.sites: list[tuple] = [()]
        self._site_ids: dict[tuple, int] = {}
        self.reports: list[Report] = []
        self._seen: set[tuple] = set()
        self.raise_reports = True

    # Agents and sites ------------------------------------------------------------------------------------------------

    def agent(self, launch: Launch) -> int:
        if self.agents == self.capacity:
            self.capacity *= 2
            self.lane_agents = np.concatenate(
                [self.lane_agents, np.zeros_like(self.lane_agents)]
            )
        self.agents += 1
        launch.agents.append(self.agents - 1)
        return self.agents - 1

    def lane_agent(self, w: Warp, lane: int) -> int:
        agent = w.clocks.agent
        if not self.lane_agents[agent, lane]:
            number = self.agent(w.cta.launch)
            self.lane_agents[agent, lane] = number
        return int(self.lane_agents[agent, lane])

    def site(self, w: Warp, pc: int, what: str = "") -> int:
        key = (w.clocks.agent, pc, what)
        found = self._site_ids.get(key)
        if found is None:
            found = self._site_ids[key] = len(self.sites)
            program = w.cta.launch.program
            self.sites.append((program.line(pc), program.text(pc), w.name, what))
        return found

    # Life of launches and warps --------------------------------------------------------------------------------------

    def begin(self, on_race: str) -> None:
        """A run starts: the host has waited for everything before it."""
        if on_race not in ("raise", "collect"):
            raise ValueError(f"on_race {on_race!r}, expected 'raise' or 'collect'")
        self.raise_reports = on_race == "raise"
        self.reports, self._seen = [], set()
        for k in range(len(self.streams)):
            self.streams[k] = np.full((1, self.capacity), 0, np.int32)
            self.streams[k][0, : self.agents] = FOREVER

    def start_warp(self, w: Warp, launch: Launch) -> None:
        rows = np.repeat(widen(self.streams[launch.rank], self.capacity), ROWS, axis=0)
        w.clocks = WarpClocks(self.agent(launch), w.exists, widen(rows, self.capacity))

    def end_warp(self, w: Warp) -> None:
        rows = None
        for g in w.clocks.groups:
            rows = join(rows, g.rows[:1])
        w.cta.launch.clocks = join(w.cta.launch.clocks, rows)

    def end_launch(self, launch: Launch) -> None:
        """Everything that the launch did is complete and visible to the next launch of this rank."""
        rows = join(widen(self.streams[launch.rank], self.capacity), launch.clocks)
        rows[0, launch.agents] = FOREVER
        self.streams[launch.rank] = rows

    # Publishing and acquiring ----------------------------------------------------------------------------------------

    def publish(
        self,
        w: Warp,
        lanes: np.ndarray,
        into: np.ndarray | None,
        init_only: bool = False,
    ) -> np.ndarray:
        """Joins what the lanes know and did into `into`: the release half of a synchronisation."""
        c = w.clocks
        rows = None
        for g in c.groups:
            if (g.lanes & lanes).any():
                rows = join(rows, g.rows[:PUBLISHED])
        rows = self._with_own(w, lanes, rows)
        if init_only:
            rows[[ALL, ASYNC_SHARED, ASYNC_GLOBAL, ALIAS, TENSOR_OUT]] = 0
        return join(into, rows)

    def _with_own(self, w: Warp, lanes: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Adds the accesses of the lanes themselves, up to now."""
        c = w.clocks
        now = c.tick()
        everyone = not np.count_nonzero(~w.exited & ~lanes)
        alone = lanes & (self.lane_agents[c.agent] > 0) if everyone else lanes
        agents = {int(k): self.lane_agent(w, int(k)) for k in np.nonzero(alone)[0]}
        rows = widen(rows, self.capacity)
        if everyone:
            self._own_entry(rows, c.agent, now, c.fenced[:, lanes].min(1))
        for lane, agent in agents.items():
            self._own_entry(rows, agent, now, c.fenced[:, lane])
        return rows

    @staticmethod
    def _own_entry(rows: np.ndarray, agent: int, now: int, fenced: np.ndarray) -> None:
        rows[ALL, agent] = now
        for row in (ASYNC_SHARED, ASYNC_GLOBAL, ALIAS, INIT):
            rows[row, agent] = max(rows[row, agent], fenced[row])

    def acquire(self, w: Warp, lanes: np.ndarray, rows: np.ndarray | None) -> None:
        if rows is not None:
            for g in w.clocks.of(lanes & ~w.exited):
                g.rows = join(g.rows, rows)

    def warp_sync(self, w: Warp, lanes: np.ndarray) -> None:
        """The lanes learn what each of them knew and did (bar.warp.sync and every wider barrier)."""
        c = w.clocks
        inside = c.of(lanes & ~w.exited)
        if not inside:
            return
        first = inside[0]
        for g in inside[1:]:
            first.rows = join(first.rows, g.rows)
            first.lanes = first.lanes | g.lanes
        c.groups = [first, *(g for g in c.groups if not any(g is h for h in inside))]
        for lane in np.nonzero(first.lanes)[0] if (~w.exited & ~lanes).any() else ():
            self.lane_agent(w, int(lane))
        first.rows = self._with_own(w, first.lanes, first.rows)

    def fence(self, w: Warp, lanes: np.ndarray, sem: str, scope: str) -> None:
        c = w.clocks
        if sem in ("acq_rel", "acquire"):
            for lane in np.nonzero(lanes)[0]:
                for released, observer_scope in c.observed[lane]:
                    if inclusive(
                        released.place,
                        released.scope,
                        _place(w),
                        _narrower(scope, observer_scope),
                    ):
                        self.acquire(w, np.arange(32) == lane, released.rows)
                c.observed[lane] = []
        if sem in ("acq_rel", "release"):
            rows = self.publish(w, lanes, None)
            for lane in np.nonzero(lanes)[0]:
                c.released[lane] = (rows, scope)

    def proxy_fence(self, w: Warp, lanes: np.ndarray, proxy: str, space: str) -> None:
        rows = {
            "alias": (ALIAS,),
            "global": (ASYNC_GLOBAL,),
            "shared": (ASYNC_SHARED,),
        }.get(proxy if proxy == "alias" else space, (ASYNC_SHARED, ASYNC_GLOBAL))
        c = w.clocks
        for g in c.of(lanes & ~w.exited):
            for row in rows:
                np.maximum(g.rows[row], g.rows[ALL], out=g.rows[row])
        now = c.tick()
        for row in rows:
            c.fenced[row, lanes] = now
        if (~w.exited & ~lanes).any():
            for lane in np.nonzero(lanes)[0]:
                self.lane_agent(w, int(lane))
        if proxy == "async":
            self._fence_inits(w, lanes)

    def init_fence(self, w: Warp, lanes: np.ndarray) -> None:
        c = w.clocks
        for g in c.of(lanes & ~w.exited):
            np.maximum(g.rows[INIT], g.rows[ALL], out=g.rows[INIT])
        c.fenced[INIT, lanes] = c.tick()
        self._fence_inits(w, lanes)

    @staticmethod
    def _fence_inits(w: Warp, lanes: np.ndarray) -> None:
        for lane, barrier in w.clocks.initialised:
            if lanes[lane]:
                barrier.fenced = True
        w.clocks.initialised = [x for x in w.clocks.initialised if not lanes[x[0]]]

    # mbarriers -------------------------------------------------------------------------------------------------------

    def mbarrier_init(self, w: Warp, lane: int, barrier: Mbarrier, pc: int) -> None:
        c = w.clocks
        barrier.initialised = (c.agent, lane, c.clock, self.site(w, pc))
        barrier.known = set()
        self.lane_agent(
            w, lane
        )  # its fence counts, whenever the other lanes run theirs
        c.initialised.append((lane, barrier))

    def mbarrier_use(
        self, w: Warp, lane: int, barrier: Mbarrier, pc: int, asynchronous: bool = False
    ) -> None:
        """Initialisation must be ordered before use, and fenced before remote or asynchronous use."""
        agent, owner, when, site = barrier.initialised
        if (asynchronous or barrier.cta is not w.cta) and not barrier.fenced:
            self.report(
                "mbarrier",
                site,
                owner,
                self.site(w, pc),
                lane,
                f"{barrier.name} is used without fence.mbarrier_init or fence.proxy.async",
            )
            barrier.fenced = True
        key = (w.clocks.agent, lane)
        if key in barrier.known or key == (agent, owner):
            return
        rows = w.clocks.group_of(lane).rows
        for candidate in (agent, int(self.lane_agents[agent, owner])):
            if (
                candidate
                and candidate < rows.shape[1]
                and max(rows[ALL, candidate], rows[INIT, candidate]) >= when
            ):
                barrier.known.add(key)
                return
        self.report(
            "mbarrier",
            site,
            owner,
            self.site(w, pc),
            lane,
            f"use of {barrier.name} is not ordered after its init",
        )
        barrier.known.add(key)

    # Asynchronous operations -----------------------------------------------------------------------------------------

    def _knowledge(self, w: Warp, lane: int, rows: int = PUBLISHED) -> np.ndarray:
        own = w.clocks.group_of(lane).rows[:rows].copy()
        return self._with_own(w, np.arange(32) == lane, own)

    def issue(self, w: Warp, lane: int, flag: Mbarrier, pc: int) -> AsyncOp:
        """A copy that signals `flag`."""
        if flag.agent is None:
            flag.agent = self.agent(flag.cta.launch)
        self.mbarrier_use(w, lane, flag, pc, asynchronous=True)
        return AsyncOp(
            self._knowledge(w, lane), self.site(w, pc), (flag.agent,), 0, flag
        )

    def complete(self, op: AsyncOp, flag: Mbarrier) -> None:
        rows = widen(op.rows.copy(), self.capacity)
        rows[ALL, flag.agent] = max(rows[ALL, flag.agent], flag.phase + 1)
        flag.collected = join(flag.collected, rows)

    def issue_bulk(self, w: Warp, lane: int, groups, pc: int) -> AsyncOp:
        return AsyncOp(
            self._knowledge(w, lane),
            self.site(w, pc),
            groups.agents,
            groups.committed + 1,
        )

    def bulk_done(self, w: Warp, lane: int, groups, upto: int, read_only: bool) -> None:
        """wait_group: the groups up to number `upto` have read their sources, and unless `.read` written as well."""
        if upto <= 0:
            return
        for g in w.clocks.of(np.arange(32) == lane):
            g.rows = widen(g.rows, self.capacity)
            for agent in groups.agents[:1] if read_only else groups.agents:
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
            op = AsyncOp(rows, self.site(w, pc), (agent,), when)
            op.in_order = True
        else:
            op.rows = join(op.rows, rows)
        return op

    def pipe_done(self, w: Warp, lanes: np.ndarray, agent: int, upto: int) -> None:
        for g in w.clocks.of(lanes & ~w.exited):
            g.rows = widen(g.rows, self.capacity)
            g.rows[ALL, agent] = max(g.rows[ALL, agent], upto)

    # Tensor memory ---------------------------------------------------------------------------------------------------

    def issue_tensor(
        self, w: Warp, lane: int, agent: int, when: int, pc: int
    ) -> AsyncOp:
        op = AsyncOp(self._knowledge(w, lane, ROWS), self.site(w, pc), (agent,), when)
        op.in_order = True
        return op

    def complete_tensor(self, op: AsyncOp, flag: Mbarrier) -> None:
        """tcgen05.commit: all the thread's operations so far are complete; implies the fence before the thread sync."""
        rows = widen(op.rows[:PUBLISHED].copy(), self.capacity)
        rows[ALL, op.agents[0]] = rows[TENSOR_OUT, op.agents[0]] = op.when
        flag.collected = join(flag.collected, rows)

    def _tensor_granules(
        self, tensor, stripes: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        if tensor.shadow is None:
            tensor.shadow = Shadow(4 * TENSOR_STRIPES * TENSOR_COLUMNS)
        return stripes[:, None] * TENSOR_COLUMNS + columns

    @property
    def _tensor_row(self) -> int:
        return TENSOR if self.machine.strict else ALL

    def tensor(
        self,
        w: Warp,
        tensor,
        stripes,
        columns,
        write: bool,
        pc: int,
        asynchronous: bool,
    ) -> None:
        """tcgen05.ld / st / dealloc by a warp; ld and st are asynchronous until their wait, dealloc needs no fence."""
        granules = self._tensor_granules(tensor, stripes, columns)
        c = w.clocks
        what = "st" if write else "ld"
        if what not in c.tensor_agents:
            c.tensor_agents[what] = self.agent(w.cta.launch)
        agent = c.tensor_agents[what]
        c.tensor_counts[what] = c.tensor_counts.get(what, 0) + 1
        rows = widen(c.groups[0].rows, self.capacity)
        site = self.site(w, pc)
        who = agent << 8 | SEVERAL << 2
        row = self._tensor_row if asynchronous else ALL
        self._visit(
            tensor.shadow,
            granules,
            write,
            rows,
            row,
            row,
            who,
            c.tensor_counts[what],
            site,
            0,
            None,
        )
        if not asynchronous:
            self.tensor_wait(w, ~w.exited, what)
            tensor.shadow.forget(granules)  # the allocator orders the next owner after this

    def tensor_async(self, op: AsyncOp, tensor, stripes, columns, write: bool) -> None:
        granules = self._tensor_granules(tensor, stripes, columns)
        who = op.agents[0] << 8 | SEVERAL << 2
        rows = widen(op.rows, self.capacity)
        row = self._tensor_row
        self._visit(
            tensor.shadow,
            granules,
            write,
            rows,
            row,
            row,
            who,
            op.when,
            op.site,
            0,
            op.agents[0],
        )

    def tensor_wait(self, w: Warp, lanes: np.ndarray, what: str) -> None:
        c = w.clocks
        if what in c.tensor_agents:
            for g in c.of(lanes & ~w.exited):
                g.rows = widen(g.rows, self.capacity)
                g.rows[[ALL, TENSOR], c.tensor_agents[what]] = c.tensor_counts[what]

    def tensor_fence(self, w: Warp, lanes: np.ndarray, side: str) -> None:
        c = w.clocks
        for g in c.of(lanes & ~w.exited):
            g.rows = widen(g.rows, self.capacity)
            if side == "after":
                np.maximum(g.rows[TENSOR], g.rows[TENSOR_OUT], out=g.rows[TENSOR])
            else:
                for agent in c.tensor_agents.values():
                    g.rows[TENSOR_OUT, agent] = max(
                        g.rows[TENSOR_OUT, agent], g.rows[TENSOR, agent]
                    )

    # Accesses --------------------------------------------------------------------------------------------------------

    def access(
        self,
        w: Warp,
        lanes: np.ndarray,
        memory: Bytes,
        offsets: np.ndarray,
        size: int,
        write: bool,
        path: int,
        pc: int,
    ) -> None:
        """A weak access by the generic proxy: `lanes` int[n], their `offsets`, `size` bytes each."""
        shadow = memory.shadow
        if shadow is None:
            shadow = memory.shadow = Shadow(memory.size)
        granules = shadow.granules(offsets, size)
        c = w.clocks
        site = self.site(w, pc)
        if shadow.sync is not None and shadow.sync[granules].any():
            self._against_strong(w, lanes, shadow, granules, write, site)
        if len(c.groups) == 1:
            self._lanes(w, c.groups[0], lanes, shadow, granules, write, path, site)
            return
        for g in c.groups:
            mine = g.lanes[lanes]
            if mine.any():
                self._lanes(
                    w, g, lanes[mine], shadow, granules[mine], write, path, site
                )

    def _lanes(self, w, group, lanes, shadow, granules, write, path, site) -> None:
        c = w.clocks
        if group.rows.shape[1] < self.capacity:
            group.rows = widen(group.rows, self.capacity)
        who = (c.agent << 8 | path << 1) + (lanes.astype(np.int32) << 2)
        own = (w, c.agent, lanes, c.fenced[ALIAS][lanes])
        self._visit(
            shadow,
            granules,
            write,
            group.rows,
            ALL,
            ALL,
            who[:, None],
            c.clock,
            site,
            path,
            own,
        )

    def async_access(
        self,
        op: AsyncOp,
        memory: Bytes,
        offsets: np.ndarray,
        size: int,
        write: bool,
        stage: int = 0,
    ) -> None:
        """An access by the asynchronous proxy; `stage` picks the pipe of a bulk store (source read, destination write)."""
        shadow = memory.shadow
        if shadow is None:
            shadow = memory.shadow = Shadow(memory.size)
        granules = shadow.granules(offsets, size)
        if shadow.sync is not None and shadow.sync[granules].any():
            self.report_sync_overlap(op, memory)
        rows = op.rows = widen(op.rows, self.capacity)
        agent = op.agents[stage]
        who = agent << 8 | SEVERAL << 2 | ASYNCHRONOUS
        generic = ASYNC_SHARED if memory.shared else ASYNC_GLOBAL
        self._visit(
            shadow,
            granules,
            write,
            rows,
            generic,
            ALL,
            who,
            op.when,
            op.site,
            0,
            agent if op.in_order else None,
        )

    def _visit(
        self,
        shadow,
        granules,
        write,
        rows,
        generic,
        asynchronous,
        who,
        when,
        site,
        path,
        own,
    ) -> None:
        """Checks one access against the shadow and records it.

        `generic` and `asynchronous` are the clock rows that entries of either kind must be covered by; `own` is (warp, agent, lanes,
        alias fences) of a warp's access, or the agent of an in-order pipe, whose own entries are ordered.
        """
        shadow.paths |= 1 << path
        mixed = shadow.paths == 3
        bad = self._unordered(
            rows,
            shadow.writer[granules],
            shadow.written[granules],
            generic,
            asynchronous,
            path,
            mixed,
            own,
        )
        if bad is not None:
            self._report_entries(
                shadow.writer,
                shadow.written,
                shadow.write_site,
                granules,
                bad,
                rows,
                who,
                site,
                write,
            )
        if not write:
            self._record_read(shadow, granules, who, when, site)
            return
        # A generic read before an asynchronous write needs no proxy fence, only order.
        bad = self._unordered(
            rows,
            shadow.reader[granules],
            shadow.read[granules],
            asynchronous,
            asynchronous,
            path,
            mixed,
            own,
        )
        if bad is not None:
            self._report_entries(
                shadow.reader,
                shadow.read,
                shadow.read_site,
                granules,
                bad,
                rows,
                who,
                site,
                write,
            )
        more = shadow.more[granules]
        if more.any():
            self._check_sets(
                np.unique(more), rows, asynchronous, path, mixed, own, who, site
            )
            shadow.more[granules] = 0
        shadow.writer[granules] = who
        shadow.written[granules] = when
        shadow.write_site[granules] = site
        shadow.reader[granules] = 0
        shadow.read[granules] = 0

    def _unordered(self, rows, who, when, generic, asynchronous, path, mixed, own):
        """Mask of entries that the rows do not cover, or None."""
        agent = who >> 8
        ok = rows[generic][agent] >= when
        if generic != asynchronous:
            ok = np.where(who & ASYNCHRONOUS, rows[asynchronous][agent] >= when, ok)
        if mixed:
            other = ((who & MULTICAST_PATH) >> 1) != path
            ok &= ~other | (rows[ALIAS][agent] >= when)
        if np.count_nonzero(ok) == ok.size:
            return None
        if isinstance(own, tuple):
            _, me, lanes, fenced = own
            mine = (who >> 2) == (me << 6 | lanes)[:, None]
            if mixed:
                mine &= ~other | (fenced[:, None] >= when)
            ok |= mine
        elif own is not None:
            ok |= agent == own
        if ok.all():
            return None
        lane = (who >> 2) & SEVERAL
        single = self.lane_agents[agent, lane & 31]
        covered = (lane < 32) & (single > 0) & (rows[generic][single] >= when)
        if generic != asynchronous:
            covered |= (
                (lane < 32)
                & (single > 0)
                & ((who & ASYNCHRONOUS) != 0)
                & (rows[asynchronous][single] >= when)
            )
        if mixed:
            covered &= ~other | (rows[ALIAS][single] >= when)
        ok |= covered
        return None if ok.all() else ~ok

    def _record_read(self, shadow, granules, who, when, site) -> None:
        old = shadow.reader[granules]
        who = np.broadcast_to(np.asarray(who, np.int32), old.shape)
        same = (old & ~0xFC) == (who & ~0xFC)
        free = (old == 0) | same
        value = np.where((old == 0) | (old == who), who, who | SEVERAL << 2)
        if free.all():
            shadow.reader[granules] = value
            shadow.read[granules] = when
            shadow.read_site[granules] = site
            return
        place = granules[free]
        shadow.reader[place] = value[free]
        shadow.read[place] = when
        shadow.read_site[place] = site
        rest = granules[~free]
        lanes = np.unique((who[~free] >> 2) & SEVERAL)
        mask = -1 if lanes[-1] == SEVERAL else int((1 << lanes.astype(np.int64)).sum())
        key = int(who[~free][0]) & ~0xFC
        sets = shadow.more[rest]
        for old_set in np.unique(sets):
            shadow.more[rest[sets == old_set]] = self.readers.add(
                int(old_set), key, (when, mask, site)
            )

    def _check_sets(self, ids, rows, row, path, mixed, own, who, site) -> None:
        for number in ids:
            for entry_who, (when, mask, entry_site) in self.readers.sets[
                number
            ].items():
                agent = entry_who >> 8
                if own is not None and agent == (
                    own[1] if isinstance(own, tuple) else own
                ):
                    continue
                needs = (
                    [row, ALIAS]
                    if mixed and ((entry_who & MULTICAST_PATH) >> 1) != path
                    else [row]
                )
                if all(
                    rows[r, agent] >= when
                    or (mask > 0 and self._lanes_cover(rows[r], agent, mask, when))
                    for r in needs
                ):
                    continue
                kind = "race" if rows[ALL, agent] < when else "alias"
                first = int(np.ravel(np.asarray(who))[0])
                self.report(
                    kind,
                    entry_site,
                    None,
                    site,
                    _lane_of(first),
                    "a write after a read",
                )

    def _lanes_cover(self, row: np.ndarray, agent: int, mask: int, when: int) -> bool:
        lanes = [k for k in range(32) if mask >> k & 1]
        return all(
            self.lane_agents[agent, k] and row[self.lane_agents[agent, k]] >= when
            for k in lanes
        )

    # Strong accesses -------------------------------------------------------------------------------------------------

    def strong(
        self,
        w: Warp,
        lanes,
        memory: Bytes,
        offsets,
        size: int,
        kind: str,
        sem: str,
        scope: str,
        path: int,
        pc: int,
    ) -> None:
        """Relaxed, acquire and release loads, stores and updates: no race among themselves where scopes include each other."""
        shadow = memory.shadow
        if shadow is None:
            shadow = memory.shadow = Shadow(memory.size)
        granules = shadow.granules(offsets, size)
        shadow.mark_sync(granules)
        site = self.site(w, pc)
        for n, lane in enumerate(lanes):
            self._against_weak(
                w, int(lane), shadow, granules[n : n + 1], kind != "read", site
            )
            location = shadow.locations.setdefault(int(offsets[n]), Location())
            self._against_other_scopes(
                w, int(lane), location, kind != "read", scope, site
            )
            self._order(w, int(lane), location, kind, sem, scope)

    def _against_weak(
        self, w: Warp, lane: int, shadow, granules, write: bool, site: int
    ) -> None:
        """A strong access still needs order with the weak accesses of others."""
        c = w.clocks
        group = c.group_of(lane)
        rows = group.rows = widen(group.rows, self.capacity)
        own = (w, c.agent, np.array([lane], np.int32), c.fenced[ALIAS][[lane]])
        who = c.agent << 8 | lane << 2
        for table, clocks, sites in (
            (shadow.writer, shadow.written, shadow.write_site),
            (shadow.reader, shadow.read, shadow.read_site),
        ):
            bad = self._unordered(
                rows, table[granules], clocks[granules], ALL, ALL, 0, False, own
            )
            if bad is not None:
                self._report_entries(
                    table, clocks, sites, granules, bad, rows, who, site, write
                )
            if not write:
                break

    def _against_strong(
        self, w: Warp, lanes, shadow, granules, write: bool, site: int
    ) -> None:
        """A weak access against strong ones of others: ordered, or both reads."""
        for n, lane in enumerate(lanes):
            rows = widen(w.clocks.group_of(int(lane)).rows, self.capacity)
            low, high = (
                int(granules[n, 0]) << shadow.shift,
                (int(granules[n, -1]) + 1) << shadow.shift,
            )
            for offset in range(low & ~7, high, 1 if shadow.shift == 0 else 4):
                location = shadow.locations.get(offset)
                if location is None:
                    continue
                for entry in location.accesses.values():
                    if (write or entry.write) and not self._covers(
                        rows, w, int(lane), entry
                    ):
                        self.report(
                            "race",
                            entry.site,
                            entry.lane,
                            site,
                            int(lane),
                            "strong and weak accesses to one location",
                        )

    def _covers(self, rows, w: Warp, lane: int, entry) -> bool:
        if entry.agent == w.clocks.agent and entry.lane == lane:
            return True
        single = self.lane_agents[entry.agent, entry.lane]
        return rows[ALL, entry.agent] >= entry.when or (
            single > 0 and rows[ALL, single] >= entry.when
        )

    def _against_other_scopes(
        self, w: Warp, lane: int, location: Location, write: bool, scope: str, site: int
    ) -> None:
        place = _place(w)
        for other, other_scope, other_write in location.kinds:
            if (write or other_write) and not inclusive(
                other, other_scope, place, scope
            ):
                rows = widen(w.clocks.group_of(lane).rows, self.capacity)
                for entry in location.accesses.values():
                    if (
                        entry.place == other
                        and (write or entry.write)
                        and not self._covers(rows, w, lane, entry)
                    ):
                        self.report(
                            "scope",
                            entry.site,
                            entry.lane,
                            site,
                            lane,
                            f".{other_scope} and .{scope} do not include each other",
                        )
                break
        location.note(w.clocks.agent, lane, w.clocks.clock, place, scope, write, site)

    def _order(
        self, w: Warp, lane: int, location: Location, kind: str, sem: str, scope: str
    ) -> None:
        c, only = w.clocks, np.arange(32) == lane
        place = _place(w)
        if kind != "write":
            for released in location.releases.values():
                if not inclusive(released.place, released.scope, place, scope):
                    c.narrow = f"a release at .{released.scope} of {released.place} was read at .{scope}"
                elif sem in ("acquire", "acq_rel"):
                    self.acquire(w, only, released.rows)
                else:
                    c.observed[lane].append((released, scope))
        if kind == "read":
            return
        if kind == "write":
            location.releases.clear()
        if sem in ("release", "acq_rel"):
            location.release(place, scope, self.publish(w, only, None))
        elif c.released[lane] is not None:
            rows, fence_scope = c.released[lane]
            location.release(place, _narrower(scope, fence_scope), rows)

    # Reports ---------------------------------------------------------------------------------------------------------

    def _report_entries(
        self, table, clocks, sites, granules, bad, rows, who, site, write
    ) -> None:
        where = np.argwhere(bad)[0]
        granule = granules[tuple(where)]
        entry, when = int(table[granule]), int(clocks[granule])
        mine = int(np.broadcast_to(np.asarray(who), granules.shape)[tuple(where)])
        agent = entry >> 8
        if rows[ALL, agent] >= when:
            kind = "alias" if (entry ^ mine) & MULTICAST_PATH else "proxy"
            if (
                rows.shape[0] == ROWS
                and not (entry | mine) & ASYNCHRONOUS
                and kind == "proxy"
            ):
                kind = "tcgen05"
        else:
            same_warp = agent == mine >> 8 and not entry & ASYNCHRONOUS
            kind = "warp" if same_warp else "race"
        self.report(
            kind,
            int(sites[granule]),
            _lane_of(entry),
            site,
            _lane_of(mine),
            f"{int(bad.sum())} granules",
        )

    def report_sync_overlap(self, op: AsyncOp, memory: Bytes) -> None:
        self.report(
            "race",
            op.site,
            None,
            op.site,
            None,
            f"asynchronous access to synchronisation words of {memory.label}",
        )

    def report(
        self, kind: str, first: int, first_lane, second: int, second_lane, note: str
    ) -> None:
        a, b = self.sites[first], self.sites[second]
        lines = (a[0] if a else 0, b[0])
        if (kind, lines) in self._seen or len(self.reports) >= MAX_REPORTS:
            return
        self._seen.add((kind, lines))
        message = f"{kind}: {_describe(a, first_lane)}\n  is not ordered before\n  {_describe(b, second_lane)}\n  ({note})"
        report = Report(kind, message, lines)
        self.reports.append(report)
        if self.raise_reports:
            error = EmulationError("race", message, lines[1])
            error.report = report
            raise error


def _describe(site: tuple, lane: int | None) -> str:
    if not site:
        return "an access by the host"
    line, text, name, _ = site
    return f"line {line} `{text}` by {name}" + (
        f" lane {lane}" if lane is not None else ""
    )


def _lane_of(who: int) -> int | None:
    lane = who >> 2 & SEVERAL
    return lane if lane < 32 else None


def _place(w: Warp) -> tuple:
    cta = w.cta
    return (cta.launch.rank, cta.launch.index, cta.cluster.origin, cta.rank)


_WIDTH = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}


def _narrower(a: str, b: str) -> str:
    return a if _WIDTH[a] < _WIDTH[b] else b
