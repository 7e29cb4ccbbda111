"""A location of strong accesses: what was released there, and which accesses it has seen."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .clocks import join

# A place is (rank, launch, cluster origin, CTA in the cluster); a scope reaches as far as its prefix.
PREFIX = {"cta": 4, "cluster": 3, "gpu": 1, "sys": 0}


def inclusive(a: tuple, a_scope: str, b: tuple, b_scope: str) -> bool:
    """Whether each scope contains the other's thread (PTX: morally strong)."""
    shared = min(PREFIX[a_scope], 4), min(PREFIX[b_scope], 4)
    return all(a[:n] == b[:n] for n in shared)


@dataclass
class Released:
    place: tuple
    scope: str
    rows: np.ndarray


@dataclass
class StrongAccess:
    agent: int
    lane: int
    when: int
    place: tuple
    write: bool
    site: int


@dataclass
class Location:
    releases: dict[tuple, Released] = field(default_factory=dict)
    accesses: dict[tuple, StrongAccess] = field(default_factory=dict)
    kinds: set[tuple] = field(default_factory=set)

    def release(self, place: tuple, scope: str, rows: np.ndarray) -> None:
        """Adds a release; those before it stay when a read-modify-write continues their sequence."""
        old = self.releases.get((place, scope))
        self.releases[place, scope] = Released(
            place, scope, join(rows, old.rows) if old else rows
        )

    def note(
        self,
        agent: int,
        lane: int,
        when: int,
        place: tuple,
        scope: str,
        write: bool,
        site: int,
    ) -> None:
        old = self.accesses.get((agent, lane, write))
        if old is None or old.when < when:
            self.accesses[agent, lane, write] = StrongAccess(
                agent, lane, when, place, write, site
            )
        self.kinds.add((place, scope, write))
