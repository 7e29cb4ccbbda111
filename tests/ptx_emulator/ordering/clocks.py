"""Vector clocks: what each group of lanes of a warp knows to have happened, by kind of access.

A clock row has one entry an agent. Agents are warps, single lanes that synchronised alone, and asynchronous pipes (an mbarrier's
copies, a thread's bulk groups, a tensor-core queue); pipes count operations, warps count their own synchronisations.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

# Rows. ALL is plain causality; the others are the part of it that a fence has made valid for another kind of access.
ALL, ASYNC_SHARED, ASYNC_GLOBAL, ALIAS, TENSOR_OUT, INIT, TENSOR = range(7)
PUBLISHED = 6  # rows that travel with a release; TENSOR needs tcgen05.fence::after_thread_sync on the other side
ROWS = 7
FOREVER = np.int32(1 << 30)


def widen(rows: np.ndarray, width: int) -> np.ndarray:
    """The same clocks for at least `width` agents."""
    if rows.shape[1] >= width:
        return rows
    out = np.zeros((rows.shape[0], width), np.int32)
    out[:, : rows.shape[1]] = rows
    return out


def join(target: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    """The later of two sets of published rows, in `target` where it is wide enough."""
    if other is None:
        return target
    if target is None:
        return other.copy()
    target = widen(target, other.shape[1])
    part = target[: other.shape[0], : other.shape[1]]
    np.maximum(part, other, out=part)
    return target


class Group:
    """Lanes of a warp that know the same."""

    __slots__ = ("lanes", "rows")

    def __init__(self, lanes: np.ndarray, rows: np.ndarray):
        self.lanes = lanes
        self.rows = rows


@dataclass(frozen=True)
class ReleaseFence:
    """A release fence of lanes that knew `rows`; it covers their own accesses up to `when`."""

    rows: np.ndarray
    when: int
    fenced: np.ndarray
    scope: str


class WarpClocks:
    """A warp's own clock, what its lanes know, and how far each lane has fenced its own accesses."""

    def __init__(self, agent: int, lanes: np.ndarray, rows: np.ndarray):
        self.agent = agent
        self.clock = 1
        self.groups = [Group(lanes.copy(), rows)]
        self.fenced = np.zeros(
            (ROWS, 32), np.int32
        )  # rows ASYNC_*, ALIAS, INIT: own accesses up to this clock
        self.released: list[ReleaseFence | None] = [None] * 32
        # Releases that relaxed loads have read, for a later acquire fence.
        self.observed: defaultdict[int, dict] = defaultdict(dict)
        self.tensor_agents: dict[str, int] = {}
        self.tensor_counts: dict[str, int] = {}
        self.initialised: list = []

    def of(self, lanes: np.ndarray) -> list[Group]:
        """The groups of exactly these lanes, split off where a group has others too."""
        if len(self.groups) == 1 and not np.count_nonzero(
            self.groups[0].lanes & ~lanes
        ):
            return self.groups
        inside, outside = [], []
        for g in self.groups:
            taken = g.lanes & lanes
            if not taken.any():
                outside.append(g)
            elif (taken == g.lanes).all():
                inside.append(g)
            else:
                inside.append(Group(taken, g.rows.copy()))
                outside.append(Group(g.lanes & ~lanes, g.rows))
        self.groups = inside + outside
        return inside

    def group_of(self, lane: int) -> Group:
        if len(self.groups) == 1:
            return self.groups[0]
        return next(g for g in self.groups if g.lanes[lane])

    def tick(self) -> int:
        self.clock += 1
        return self.clock - 1
