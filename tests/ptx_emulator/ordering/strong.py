"""A location of strong accesses: what was released there, and who accessed it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .clocks import join

if TYPE_CHECKING:
    from ptx_emulator.warp import Warp

# How much of a place (rank, launch, cluster origin, CTA) a scope has in common.
PREFIX = {"cta": 4, "cluster": 3, "gpu": 1, "sys": 0}


def place_of(w: Warp) -> tuple:
    cta = w.cta
    return (cta.launch.rank, cta.launch.index, cta.cluster.origin, cta.rank)


def narrower(a: str, b: str) -> str:
    return a if PREFIX[a] > PREFIX[b] else b


def inclusive(a: tuple, a_scope: str, b: tuple, b_scope: str) -> bool:
    """Whether each scope contains the other's thread (PTX: morally strong)."""
    common = max(PREFIX[a_scope], PREFIX[b_scope])
    return a[:common] == b[:common]


@dataclass(frozen=True)
class Released:
    place: tuple
    scope: str
    rows: np.ndarray


@dataclass(frozen=True)
class StrongAccess:
    """The last strong access of a lane of one kind."""

    agent: int
    lane: int
    when: int
    place: tuple
    scope: str
    write: bool
    site: int
    path: int


@dataclass
class Location:
    releases: dict[tuple, Released] = field(default_factory=dict)
    accesses: dict[tuple, StrongAccess] = field(default_factory=dict)
    kinds: set[tuple] = field(default_factory=set)

    def release(self, place: tuple, scope: str, rows: np.ndarray) -> None:
        """Adds a release; those that a read-modify-write continues stay."""
        old = self.releases.get((place, scope))
        joined = join(rows, old.rows) if old else rows
        self.releases[place, scope] = Released(place, scope, joined)

    def note(self, access: StrongAccess) -> None:
        self.accesses[access.agent, access.lane, access.write] = access
        self.kinds.add((access.place, access.scope, access.write))
