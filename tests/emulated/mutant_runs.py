"""The kernels whose mutants are judged, and the runs that a mutant has to survive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from codegen.gemm_variants import GemmVariant, Sm90Variant, Sm100Variant
from comm_world import Launched, World, check_results, launch_simt, simt_ptx
from gemm_world import GemmWorld
from kernel_layout import Call, Collective, FaultKind, Reducer
from ptx_emulator import Schedule

TIMEOUT_NS = 2_000_000
BOUND_NS = 10 * TIMEOUT_NS
PATIENCE_NS = 100_000_000  # where nothing is missing; the sooner, the shorter is a hang

Sizes = tuple[int, int, int]  # rows, n, k
# Enqueues a call; takes the call, `ranks`, `grid` and the options of World.launch.
Start = Callable[..., list[Launched]]


class Subject(Protocol):
    """A kernel whose PTX can be replaced."""

    def ptx(self) -> str:
        """As compiled."""

    def call(self, ranks: int, sizes: Sizes, **fields: Any) -> Call:
        """A call that the kernel serves."""

    def ranks(
        self, ptx: str, largest: Call, resident: int, **options: Any
    ) -> tuple[World, Start]:
        """Ranks on which this PTX stands for the kernel, and what makes calls on them.

        Calls of the other collective are served by its kernel as compiled.
        """


@dataclass(frozen=True)
class SimtSubject:
    """The communication half behind a SIMT multiplication."""

    reducer: Reducer
    collective: Collective

    def ptx(self) -> str:
        mode = "rs" if self.collective == Collective.REDUCE_SCATTER else "ar"
        return simt_ptx(f"{self.reducer.name.lower()}_{mode}")

    def call(self, ranks: int, sizes: Sizes, **fields: Any) -> Call:
        rows, n, k = sizes
        kind = {"reducer": self.reducer, "collective": self.collective}
        return Call(ranks, rows, n, k, **kind, **fields)

    def ranks(
        self, ptx: str, largest: Call, resident: int, **options: Any
    ) -> tuple[World, Start]:
        world = World(largest, resident_ctas=resident, **options)

        def start(call, **options):
            text = ptx if call.collective == self.collective else None
            return launch_simt(world, call, ptx=text, **options)

        return world, start


@dataclass(frozen=True)
class GemmSubject:
    """A kernel with a tensor-core mainloop."""

    variant: GemmVariant

    def ptx(self) -> str:
        return self.variant.ptx()

    def call(self, ranks: int, sizes: Sizes, **fields: Any) -> Call:
        return self.variant.call(ranks, *sizes, **fields)

    def ranks(
        self, ptx: str, largest: Call, resident: int, **options: Any
    ) -> tuple[World, Start]:
        ctas = resident * self.variant.cluster
        world = GemmWorld(self.variant, largest, resident_ctas=ctas, **options)
        world.use(self.variant, ptx)

        def start(call, *, ranks=None, grid=1, **options):
            of = world.ranks if ranks is None else ranks
            options["clusters"] = grid
            variant = replace(self.variant, collective=call.collective)
            return [world.start(rank, variant, call, **options) for rank in of]

        return world, start


@dataclass(frozen=True)
class Sums:
    """Consecutive calls of changing shape on one workspace; results and faults checked.

    Attributes:
      calls: sizes of each.
      schedule: how they interleave.
      ranks: number of them.
      grid: CTAs, or CTA pairs, of a launch.
      resident: how many of them run at one time.
      alternating: the first call and every second one are of the other collective.
    """

    calls: tuple[Sizes, ...]
    schedule: Schedule = field(default_factory=Schedule)
    ranks: int = 2
    grid: int = 1
    resident: int = 1
    alternating: bool = False

    def run(self, subject: Subject, ptx: str, seed: int) -> str | None:
        """How it went wrong, or None."""
        calls = [subject.call(self.ranks, sizes) for sizes in self.calls]
        for number in range(0, len(calls) if self.alternating else 0, 2):
            other = Collective(1 - calls[number].collective)
            calls[number] = replace(calls[number], collective=other)
        # Whole cache lines, and slots of all sources.
        room = 2 * max(c.ranks * c.rows_per_shard * (c.n + 64) * 2 for c in calls)
        collective = max(call.collective for call in calls)
        largest = replace(calls[0], payload_bytes=room, collective=collective)
        world, start = subject.ranks(ptx, largest, self.resident, seed=seed)
        options = {"grid": self.grid, "timeout_ns": PATIENCE_NS}
        launched = [start(call, **options) for call in calls]
        world.run(seed, self.schedule)
        if any(world.faults()):
            return f"faults {world.faults()}"
        try:
            for launches in launched:
                check_results(launches)
        except AssertionError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class Trouble:
    """One of three ranks is missing, makes another call, is someone else, or is lost.

    All ranks must end in bounded time, record one verdict of this kind, for hosts that
    read it meanwhile, and leave NaN wherever a sum is missing; so must the launch that
    was queued behind.
    """

    kind: FaultKind
    rank: int
    sizes: Sizes
    schedule: Schedule = field(default_factory=Schedule)
    grid: int = 2  # so that who sees the fault is not who leaves last

    def run(self, subject: Subject, ptx: str, seed: int) -> str | None:
        """How it went wrong, or None."""
        call = subject.call(3, self.sizes)
        world, start = subject.ranks(ptx, call, 1, seed=seed, host=True)
        lost = self.kind == FaultKind.PEER_LOST
        absent = {self.rank} if lost or self.kind == FaultKind.TIMEOUT else set()
        options = {"grid": self.grid, "timeout_ns": (1 << 50) if lost else TIMEOUT_NS}
        launched = [
            launch
            for rank in world.ranks
            for launch in start(
                call, ranks=[rank], **options, **self._oddity(rank == self.rank)
            )
        ]
        queued = start(call, call_hash=7, **options)
        if lost:
            world.lose(self.rank)
        world.read_records([rank for rank in world.ranks if rank not in absent])
        schedule = Schedule(**{**self.schedule.__dict__, "absent_ranks": absent})
        first = world.run(seed, schedule)
        second = world.run(seed)
        if not lost and max(first.virtual_ns, second.virtual_ns) > BOUND_NS:
            return "not in bounded time"
        wrong = {self.rank} if self.kind == FaultKind.WRONG_RANK else set()
        return self._wrong(world) or _not_poisoned(
            [*queued, *(launch for launch in launched if launch.rank in absent | wrong)]
        )

    def _oddity(self, odd: bool) -> dict[str, int]:
        """What the odd rank passes that the others do not."""
        if odd and self.kind == FaultKind.OTHER_CALL:
            return {"call_hash": 2}
        if odd and self.kind == FaultKind.WRONG_RANK:
            return {"axis_index": 9}
        return {}

    def _wrong(self, world: World) -> str | None:
        verdicts = {fault and fault.verdict for fault in world.faults()}
        if len(verdicts) != 1 or None in verdicts:
            return f"verdicts {verdicts}"
        verdict = verdicts.pop()
        if verdict.kind != self.kind:
            return f"{verdict}, expected {self.kind.name}"
        if self.kind != FaultKind.OTHER_CALL and verdict.blamed != self.rank:
            return f"{verdict}, expected rank {self.rank}"
        reporter = world.faults()[verdict.reporter]
        if self.kind != FaultKind.WRONG_RANK and reporter.seen == reporter.wanted:
            return f"{reporter} does not say what was missing"
        return None


def _not_poisoned(launched: list[Launched]) -> str | None:
    """Whether a launch that has nothing to add up left rows that are not NaN."""
    if all(launch.is_poisoned() for launch in launched):
        return None
    return "a failed launch left rows that are not NaN"


Attempt = Sums | Trouble

IMPATIENT = Schedule(async_rate=0.05, time_out_rate=0.9)
STARVED = Schedule(starved_warp="random", async_rate=0.2, time_out_rate=0.9)
SLOW = Schedule(slow_rank="random")
DIVERGING = Schedule(slow_rank="random", split_rate=0.5, time_out_rate=0.5)


def _troubles(sizes: Sizes) -> tuple[Attempt, ...]:
    return (
        Trouble(FaultKind.TIMEOUT, 1, sizes),
        Trouble(FaultKind.OTHER_CALL, 2, sizes, DIVERGING),
        Trouble(FaultKind.WRONG_RANK, 1, sizes),
        Trouble(FaultKind.PEER_LOST, 0, sizes),
    )


# A try_wait that suspends hides a missing wait, so most runs make it give up, and slow
# engines keep the awaited work undone. Mostly a rank has one cluster, so that each ring
# goes round: operands where k is long, accumulators and claims where there are many tiles.
# Consecutive calls on one workspace try what keeps launches apart: those of the other
# collective, and slots that grow over results which another CTA was reading.
SM100_RUNS: tuple[Attempt, ...] = (
    Sums(((130, 8, 72), (40, 8, 8)), IMPATIENT),
    Sums(((300, 8, 8), (130, 16, 72)), STARVED),
    Sums(((130, 72, 72), (300, 72, 8), (40, 8, 8)), DIVERGING, alternating=True),
    Sums(((520, 8, 648), (260, 16, 72)), IMPATIENT),
    Sums(((1400, 8, 8), (300, 8, 136)), STARVED),
    # Warps without rows, in more tiles than there are accumulators.
    Sums(((130, 648, 8),), IMPATIENT),
    Sums(((260, 8, 8), (520, 8, 8)), SLOW, 3, 3, 3),
    *_troubles((130, 72, 8)),
)
SM90_RUNS: tuple[Attempt, ...] = (
    Sums(((130, 8, 72), (40, 8, 8)), IMPATIENT),
    Sums(((130, 8, 392),), IMPATIENT),
    Sums(((300, 8, 8), (130, 16, 72)), STARVED),
    Sums(((70, 24, 8), (200, 24, 8), (40, 8, 8)), DIVERGING, alternating=True),
    Sums(((20, 1400, 8), (130, 264, 8)), STARVED),  # the ring goes round over tiles
    Sums(((130, 8, 8), (260, 8, 8)), SLOW, 3, 2, 2),
    *_troubles((130, 72, 8)),
)
COMM_RUNS: tuple[Attempt, ...] = (
    Sums(((66, 24, 4), (5, 24, 4)), Schedule(slow_rank=0)),
    Sums(((66, 24, 4), (34, 24, 4), (66, 24, 4)), STARVED, 2, 2, 2, alternating=True),
    Sums(((70, 24, 4), (5, 24, 4)), Schedule(start_round={1: 400}), ranks=3),
    Sums(((130, 24, 4), (260, 24, 4), (260, 24, 4)), SLOW, 3, 3, 3),
    *_troubles((70, 24, 4)),
)

KERNELS: dict[str, tuple[Subject, tuple[Attempt, ...]]] = {
    "sm100_multicast_ar": (
        GemmSubject(
            Sm100Variant(
                (128, 256, 2),
                reducer=Reducer.MULTICAST,
                collective=Collective.ALL_REDUCE,
            )
        ),
        SM100_RUNS,
    ),
    "sm100_push_rs": (GemmSubject(Sm100Variant((128, 128, 1), "nk")), SM100_RUNS),
    "sm90_push_ar": (
        GemmSubject(Sm90Variant((128, 256, 2), collective=Collective.ALL_REDUCE)),
        SM90_RUNS,
    ),
    **{
        f"comm_{reducer.name.lower()}_{mode}": (
            SimtSubject(reducer, collective),
            COMM_RUNS,
        )
        for reducer in Reducer
        for mode, collective in zip(("rs", "ar"), Collective, strict=True)
    },
}
