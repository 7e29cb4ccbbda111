"""How a run interleaves warps and asynchronous engines; every choice comes from the seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Schedule:
    """Probabilities and adversities of one run.

    Attributes:
      async_rate: chance, after each step of a warp, that a pending asynchronous event happens.
      time_out_rate: chance that a try_wait on an incomplete phase returns false instead of suspending.
      late_write_rate: chance that the global write of a bulk store is held back until little else can happen.
      split_rate: chance that a divergent warp runs another split than the one furthest behind.
      starved_warp: index, in each CTA, of a warp that almost never runs; "random" picks one.
      slow_rank: a rank that runs one step where the others run many; "random" picks one.
      absent_ranks: ranks whose launches never start.
      start_round: rounds before the launches of a rank may start.
      pause: rank -> (first round, rounds) in which none of its warps runs.
    """

    async_rate: float = 0.3
    time_out_rate: float = 0.05
    late_write_rate: float = 0.0
    split_rate: float = 0.05
    starved_warp: int | str | None = None
    slow_rank: int | str | None = None
    absent_ranks: Collection[int] = ()
    start_round: Mapping[int, int] = field(default_factory=dict)
    pause: Mapping[int, tuple[int, int]] = field(default_factory=dict)


ADVERSARIAL = {
    "uniform": Schedule(),
    "late_writes": Schedule(async_rate=0.1, late_write_rate=0.5),
    "slow_engines": Schedule(async_rate=0.02),
    "fast_engines": Schedule(async_rate=0.9),
    "early_time_outs": Schedule(time_out_rate=0.6),
    "starved_warp": Schedule(starved_warp="random", time_out_rate=0.2),
    "slow_rank": Schedule(slow_rank="random"),
    "diverging": Schedule(split_rate=0.5),
}
"""Named schedules that a kernel test should pass under, with several seeds each."""
