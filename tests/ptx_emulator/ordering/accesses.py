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


ALL_LANES = -1  # as a mask
WARP_LANES = 32


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
        self._check_readers(shadow, granules, access, mixed)
        shadow.more[granules] = 0
        shadow.writer[granules] = access.who
        if access.lanes is not None:
            lost = granules[shadow.writer[granules] != access.who]
            shadow.writer[lost] |= SEVERAL << 2  # several lanes write one granule
        shadow.written[granules] = access.when
        shadow.write_site[granules] = access.site
        shadow.reader[granules] = 0
        shadow.read[granules] = 0

    def _check_readers(self, shadow: Shadow, granules, access: Access, mixed) -> None:
        """A write against everybody who has read since the last one."""
        self._check(shadow, "reader", granules, access, mixed)
        more = shadow.more[granules]
        if np.count_nonzero(more):
            self._check_sets(more, access, mixed)

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
        """The first reader goes to the arrays, every further one to the sets."""
        who = _readers(access, granules)
        old = shadow.reader[granules]
        free = (old == 0) | (old == who)
        if np.count_nonzero(free) == free.size:
            place, value = granules, who
        else:
            value = np.broadcast_to(np.asarray(who, np.int32), old.shape)[free]
            place = granules[free]
        shadow.reader[place] = value
        shadow.read[place] = access.when
        shadow.read_site[place] = access.site
        further = ~free
        if not isinstance(who, int):
            lost = place[shadow.reader[place] != value]
            if lost.size:  # several of the lanes read one granule
                shadow.reader[lost] = shadow.read[lost] = 0
                further |= np.isin(granules, lost)
        if np.count_nonzero(further):
            others = np.broadcast_to(np.asarray(who, np.int32), old.shape)[further]
            self._record_more(shadow, granules[further], others, access)

    def _record_more(self, shadow: Shadow, granules, who, access: Access) -> None:
        """Readers besides the first, each lane by itself where no two read one granule."""
        each = np.unique(who)
        if each.size == 1 or np.unique(granules).size == granules.size:
            for one in each.tolist():
                lane = lane_of(one)
                mask = ALL_LANES if lane is None else 1 << lane
                self._add_readers(shadow, granules[who == one], one, mask, access)
        else:
            mask = sum(1 << lane_of(one) for one in each.tolist())
            several = int(each[0]) | SEVERAL << 2
            self._add_readers(shadow, granules, several, mask, access)

    def _add_readers(self, shadow: Shadow, granules, who: int, mask: int, access):
        entry = (access.when, mask, access.site)
        sets = shadow.more[granules]
        for number in np.unique(sets):
            place = granules[sets == number]
            shadow.more[place] = self.readers.add(int(number), who, entry)

    def _check_sets(self, more: np.ndarray, access: Access, mixed: bool) -> None:
        writers = np.broadcast_to(np.asarray(access.who), more.shape)
        for number in np.unique(more):
            lanes = np.unique((writers[more == number] >> 2) & SEVERAL).tolist()
            for who, (when, mask, site) in self.readers.sets[number].items():
                same_path = not mixed or (who & MULTICAST_PATH) >> 1 == access.path
                row = access.asynchronous if who & ASYNCHRONOUS else access.generic
                needed = [row] if same_path else [row, ALIAS]
                agent = who >> 8
                if self._is_own(access, agent, mask, lanes) or all(
                    self._set_covered(access.rows[r], agent, mask, when) for r in needed
                ):
                    continue
                kind = self._kind(
                    access, who, when, access.agent << 8 | access.path << 1
                )
                self.report(kind, site, None, access.site, None, "write after read")

    @staticmethod
    def _is_own(access: Access, agent: int, mask: int, lanes: list[int]) -> bool:
        """Whether only the writing lane itself, or its pipe, has read."""
        if access.lanes is None:
            return agent == access.pipe
        return agent == access.agent and len(lanes) == 1 and mask == 1 << lanes[0]

    def _set_covered(self, row: np.ndarray, agent: int, mask: int, when: int) -> bool:
        if row[agent] >= when:
            return True
        singles = [self.lane_agents[agent, k] for k in range(32) if mask >> k & 1]
        return mask != ALL_LANES and all(s and row[s] >= when for s in singles)

    def against_strong(self, access: Access, shadow: Shadow, granules, write) -> None:
        raise NotImplementedError


def _readers(access: Access, granules: np.ndarray) -> np.ndarray | int:
    """Who reads; a warp that reads one place with all its lanes is one reader."""
    who = access.who
    if access.lanes is None or len(granules) < WARP_LANES:
        return who
    return int(who[0, 0]) | SEVERAL << 2 if (granules == granules[0]).all() else who
