"""Accesses to memory and tensor memory against the shadow: checks, then records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .base import CheckerBase, lane_of
from .clocks import ALIAS, ALL, ASYNC_GLOBAL, ASYNC_SHARED, TENSOR, widen
from .shadow import ASYNCHRONOUS, MULTICAST_PATH, SEVERAL, ReaderSets, Shadow

if TYPE_CHECKING:
    from ptx_emulator.memory import Bytes
    from ptx_emulator.warp import Warp

    from .asynchronous import AsyncOp


@dataclass(slots=True)
class Access:
    """One access as the shadow sees it.

    Attributes:
      rows: clocks that earlier accesses must be covered by.
      generic: the row for entries of the generic proxy.
      asynchronous: the row for entries of the asynchronous proxy.
      who: packed identity, an int or int32[n, 1] by lane.
      when: clock of the agent.
      site: for reports.
      path: 1 through a multicast address.
      lanes: int[n] where a warp's lanes access, to recognise their own entries.
      alias_fenced: int32[n], clock of each lane's last alias fence.
      pipe: agent whose own entries are ordered, or 0.
    """

    rows: np.ndarray
    generic: int
    asynchronous: int
    who: np.ndarray | int
    when: int
    site: int
    path: int = 0
    lanes: np.ndarray | None = None
    alias_fenced: np.ndarray | None = None
    pipe: int = 0

    @property
    def agent(self) -> int:
        first = self.who if isinstance(self.who, int) else int(self.who[0, 0])
        return first >> 8


class Accesses(CheckerBase):
    def __init__(self, machine):
        super().__init__(machine)
        self.readers = ReaderSets()

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
        """A weak access by the generic proxy: int[n] lanes, their offsets, `size` bytes."""
        shadow = self.shadow_of(memory)
        granules = shadow.granules(offsets, size)
        site = self.site(w, pc)
        groups = w.clocks.groups
        for g in groups:
            mine = slice(None) if len(groups) == 1 else np.nonzero(g.lanes[lanes])[0]
            if len(groups) > 1 and not mine.size:
                continue
            access = self._of_lanes(w, g, lanes[mine], path, site)
            if shadow.sync is not None and shadow.sync[granules[mine]].any():
                self.against_strong(access, shadow, granules[mine], write)
            self._visit(shadow, granules[mine], write, access)

    def _of_lanes(self, w: Warp, group, lanes, path: int, site: int) -> Access:
        c = w.clocks
        if group.rows.shape[1] < self.capacity:
            group.rows = widen(group.rows, self.capacity)
        who = (c.agent << 8 | path << 1) + (lanes.astype(np.int32) << 2)
        fenced = c.fenced[ALIAS][lanes]
        return Access(
            group.rows, ALL, ALL, who[:, None], c.clock, site, path, lanes, fenced
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
        """An access by the asynchronous proxy.

        `stage` picks the pipe of a bulk store: 0 reads the source, 1 writes.
        """
        shadow = self.shadow_of(memory)
        granules = shadow.granules(offsets, size)
        op.rows = widen(op.rows, self.capacity)
        agent = op.agents[stage]
        access = Access(
            op.rows,
            ASYNC_SHARED if memory.shared else ASYNC_GLOBAL,
            ALL,
            agent << 8 | SEVERAL << 2 | ASYNCHRONOUS,
            op.when,
            op.site,
            pipe=agent if op.in_order else 0,
        )
        if shadow.sync is not None and shadow.sync[granules].any():
            self.against_strong(access, shadow, granules, write)
        self._visit(shadow, granules, write, access)

    def tensor_access(
        self, tensor, granules: np.ndarray, write: bool, access: Access
    ) -> None:
        """An access to tensor memory; its entries have one kind."""
        self._visit(tensor.shadow, granules, write, access)

    @property
    def tensor_row(self) -> int:
        """tcgen05 fences are demanded in strict mode; CUTLASS does without them."""
        return TENSOR if self.machine.strict else ALL

    def _visit(self, shadow: Shadow, granules, write: bool, access: Access) -> None:
        shadow.paths |= 1 << access.path
        mixed = shadow.paths == 3
        self._check(shadow, "writer", granules, access, mixed)
        if not write:
            self._record_read(shadow, granules, access)
            return
        self._check(shadow, "reader", granules, access, mixed)
        more = shadow.more[granules]
        if np.count_nonzero(more):
            self._check_sets(np.unique(more), access, mixed)
            shadow.more[granules] = 0
        shadow.writer[granules] = access.who
        shadow.written[granules] = access.when
        shadow.write_site[granules] = access.site
        shadow.reader[granules] = 0
        shadow.read[granules] = 0

    def _check(
        self, shadow: Shadow, table: str, granules, access: Access, mixed: bool
    ) -> None:
        who, when, sites = shadow.table(table)
        bad = self.unordered(access, who[granules], when[granules], mixed)
        if bad is None:
            return
        first = tuple(np.argwhere(bad)[0])
        granule = granules[first]
        mine = np.broadcast_to(np.asarray(access.who), granules.shape)[first]
        entry = int(who[granule])
        kind = self._kind(access, entry, int(when[granule]), int(mine))
        note = f"{np.count_nonzero(bad)} granules"
        self.report(
            kind, int(sites[granule]), lane_of(entry), access.site, lane_of(int(mine)), note
        )  # fmt: skip

    def _kind(self, access: Access, entry: int, when: int, mine: int) -> str:
        agent, lane = entry >> 8, lane_of(entry)
        single = 0 if lane is None else self.lane_agents[agent, lane]
        known = max(access.rows[ALL, agent], access.rows[ALL, single] if single else 0)
        if known < when:
            same_warp = agent == mine >> 8 and not entry & ASYNCHRONOUS
            return "warp" if same_warp and access.generic == ALL else "race"
        if access.generic == TENSOR:
            return "tcgen05"
        return "alias" if (entry ^ mine) & MULTICAST_PATH else "proxy"

    def unordered(self, access: Access, who, when, mixed: bool):
        """Mask of shadow entries that the access's clocks do not cover, or None."""
        ok = self._covered(access, who, when, who >> 8, mixed)
        if np.count_nonzero(ok) == ok.size:
            return None
        if access.lanes is not None:
            own = (who >> 2) == (access.agent << 6 | access.lanes)[:, None]
            if mixed:
                same_path = (who & MULTICAST_PATH) >> 1 == access.path
                own &= same_path | (access.alias_fenced[:, None] >= when)
            ok |= own
        elif access.pipe:
            ok |= who >> 8 == access.pipe
        if np.count_nonzero(ok) == ok.size:
            return None
        lane = (who >> 2) & SEVERAL
        single = self.lane_agents[who >> 8, lane & 31]
        by_lane = self._covered(access, who, when, single, mixed)
        ok |= (lane < 32) & (single > 0) & by_lane
        return None if np.count_nonzero(ok) == ok.size else ~ok

    @staticmethod
    def _covered(access: Access, who, when, agent, mixed: bool):
        """Whether the clocks of `agent` reach `when`, in the rows that each entry needs."""
        ok = access.rows[access.generic][agent] >= when
        if access.generic != access.asynchronous:
            by_async = access.rows[access.asynchronous][agent] >= when
            ok = np.where(who & ASYNCHRONOUS, by_async, ok)
        if mixed:
            same_path = (who & MULTICAST_PATH) >> 1 == access.path
            ok &= same_path | (access.rows[ALIAS][agent] >= when)
        return ok

    def _record_read(self, shadow: Shadow, granules, access: Access) -> None:
        old = shadow.reader[granules]
        who = access.who
        free = (old == 0) | ((old & ~0xFC) == (who & ~0xFC))
        value = np.where((old == 0) | (old == who), who, who | SEVERAL << 2)
        if np.count_nonzero(free) == free.size:
            place = granules
        else:
            place, value = granules[free], value[free]
            rest = ~free
            others = np.broadcast_to(np.asarray(who, np.int32), old.shape)[rest]
            self._record_more(shadow, granules[rest], others, access)
        shadow.reader[place] = value
        shadow.read[place] = access.when
        shadow.read_site[place] = access.site

    def _record_more(self, shadow: Shadow, granules, who, access: Access) -> None:
        """Readers besides the first: their lanes are kept as one mask for the access."""
        lanes = np.unique((who >> 2) & SEVERAL).astype(np.int64)
        mask = -1 if lanes[-1] == SEVERAL else int((1 << lanes).sum())
        key, entry = int(who[0]) & ~0xFC, (access.when, mask, access.site)
        sets = shadow.more[granules]
        for number in np.unique(sets):
            place = granules[sets == number]
            shadow.more[place] = self.readers.add(int(number), key, entry)

    def _check_sets(self, numbers: np.ndarray, access: Access, mixed: bool) -> None:
        own = access.agent if access.lanes is not None else access.pipe
        for number in numbers:
            for who, (when, mask, site) in self.readers.sets[number].items():
                same_path = not mixed or (who & MULTICAST_PATH) >> 1 == access.path
                row = access.asynchronous if who & ASYNCHRONOUS else access.generic
                needed = [row] if same_path else [row, ALIAS]
                agent = who >> 8
                if agent == own or all(
                    self._set_covered(access.rows[r], agent, mask, when) for r in needed
                ):
                    continue
                kind = self._kind(
                    access, who, when, access.agent << 8 | access.path << 1
                )
                self.report(kind, site, None, access.site, None, "write after read")

    def _set_covered(self, row: np.ndarray, agent: int, mask: int, when: int) -> bool:
        if row[agent] >= when:
            return True
        singles = [self.lane_agents[agent, k] for k in range(32) if mask >> k & 1]
        return mask > 0 and all(s and row[s] >= when for s in singles)

    def against_strong(self, access: Access, shadow: Shadow, granules, write) -> None:
        raise NotImplementedError
