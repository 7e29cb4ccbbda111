"""Runs launches to their end: random interleaving, asynchronous events, virtual time, no-progress detection."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from .barrier_ops import complete_cluster, complete_named
from .control_ops import EXIT
from .errors import EmulationError
from .program import Block
from .schedule import Schedule
from .state import REGISTERS_PER_SM, Cluster, Launch
from .warp import Split, Warp

if TYPE_CHECKING:
    from .machine import Machine

ROUND_NS = 20
QUIET_ROUNDS = 40
FIRST_JUMP_NS = 1000
STALL_LIMIT_NS = 4_000_000_000_000
STALLS_WITHOUT_CLOCK = 4
MAX_QUIET_ROUNDS = 200_000


class Scheduler:
    def __init__(self, machine: Machine, schedule: Schedule):
        self.machine = machine
        self.schedule = schedule
        self.random = machine.random
        self.round = 0
        self.quiet = 0
        self.seen_progress = -1
        self.stall_start = machine.time_ns
        self.stalls = 0
        pick = self.random.randrange
        self.slow_rank = (
            pick(machine.ranks)
            if schedule.slow_rank == "random"
            else schedule.slow_rank
        )
        self.starved = schedule.starved_warp

    # Main loop -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        machine = self.machine
        while True:
            self._start()
            warps = [w for c in self._clusters() for w in c.all_warps() if w.splits]
            if not warps and not self._pending_launches():
                if not self._fire_one(late=True):
                    return
                continue
            runnable = [w for w in warps if self._runnable(w)]
            self.random.shuffle(runnable)
            for w in runnable:
                if w.waiting is None and w.splits and self._chosen(w):
                    self.step(w, self.random.randrange(1, 12))
                while (
                    self.random.random() < self.schedule.async_rate and self._fire_one()
                ):
                    pass
            if not runnable:
                self._fire_one(late=True)
            elif self.random.random() < 0.01:
                self._release_late()
            self._retire()
            self._watch(warps)
            self.round += 1
            if self.quiet < QUIET_ROUNDS:
                machine.time_ns += ROUND_NS

    def _runnable(self, w: Warp) -> bool:
        if w.waiting is None:
            pause = self.schedule.pause.get(w.cta.launch.rank)
            return not (pause and pause[0] <= self.round < pause[0] + pause[1])
        if w.sleep_until and self.machine.time_ns >= w.sleep_until:
            w.sleep_until = 0
            w.waiting = None
            return True
        return False

    def _chosen(self, w: Warp) -> bool:
        if self.quiet >= QUIET_ROUNDS:
            return True
        if self.slow_rank == w.cta.launch.rank and self.random.random() > 0.03:
            return False
        if self.starved is not None:
            starved = self.starved
            if starved == "random":
                starved = w.cta.__dict__.setdefault(
                    "starved", self.random.randrange(len(w.cta.warps))
                )
            if starved == w.index and self.random.random() > 0.01:
                return False
        return True

    def _clusters(self) -> list[Cluster]:
        return [
            c
            for stream in self.machine.streams
            for launch in stream[:1]
            for c in launch.resident
        ]

    def _pending_launches(self) -> bool:
        for rank, stream in enumerate(self.machine.streams):
            if stream and rank not in self.schedule.absent_ranks:
                return True
        return False

    # Launches --------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        for rank, stream in enumerate(self.machine.streams):
            if (
                rank in self.schedule.absent_ranks
                or self.round < self.schedule.start_round.get(rank, 0)
            ):
                continue
            while stream and stream[0].done:
                self.machine.finish(stream.pop(0))
            if not stream:
                continue
            launch = stream[0]
            launch.started = True
            size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
            while launch.pending and len(launch.resident) < max(
                1, self.machine.resident_ctas // size
            ):
                self._start_cluster(launch)

    def _start_cluster(self, launch: Launch) -> None:
        cluster = Cluster(launch, launch.pending.pop(0))
        function = launch.program.function
        warps = (launch.threads + 31) // 32
        registers = self._registers(function, launch)
        for cta in cluster.ctas:
            cta.warps = [Warp(cta, k) for k in range(warps)]
            cta.live_warps = warps
            for w in cta.warps:
                w.registers = registers
                if self.machine.checker is not None:
                    self.machine.checker.start_warp(w, launch)
        cluster.live_warps = warps * len(cluster.ctas)
        launch.resident.append(cluster)
        self.machine.progress += 1

    @staticmethod
    def _registers(function, launch: Launch) -> int:
        if function.max_registers:
            return function.max_registers
        threads = function.max_threads or launch.threads
        return min(255, REGISTERS_PER_SM // (threads * function.min_blocks)) // 8 * 8

    def _retire(self) -> None:
        for stream in self.machine.streams:
            for launch in stream[:1]:
                if any(
                    not c.live_warps and not c.pending_work for c in launch.resident
                ):
                    launch.resident = [
                        c for c in launch.resident if c.live_warps or c.pending_work
                    ]
                    self.machine.progress += 1

    # Asynchronous events ---------------------------------------------------------------------------------------------

    def _fire_one(self, late: bool = False) -> bool:
        machine = self.machine
        events, queues = machine.events, [q for q in machine.queues if q[0].ready()]
        total = len(events) + len(queues)
        if not total:
            if late and machine.late_events:
                self._release_late(True)
                return True
            return False
        k = self.random.randrange(total)
        machine.progress += 1
        if k >= len(events):
            queue, cluster = queues[k - len(events)]
            machine.firing = None
            self._guarded(queue.fire, cluster, queue.describe())
            return True
        events[k], events[-1] = events[-1], events[k]
        function, cluster, pc, w, _ = events.pop()
        cluster.pending_work -= 1
        machine.firing = (w, pc)
        self._guarded(function, cluster, "asynchronous operation")
        return True

    def _release_late(self, everything: bool = False) -> None:
        machine = self.machine
        while machine.late_events:
            machine.events.append(
                machine.late_events.pop(self.random.randrange(len(machine.late_events)))
            )
            if not everything:
                return

    def _guarded(self, function, cluster: Cluster, what: str) -> None:
        try:
            function()
        except EmulationError as error:
            firing = self.machine.firing
            if firing is None or error.line is not None:
                raise
            w, pc = firing
            raise _located(error, w, pc, f"{what} issued at ") from None

    # One warp --------------------------------------------------------------------------------------------------------

    def step(self, w: Warp, blocks: int) -> None:
        program = w.cta.launch.program
        table = program.blocks
        machine = self.machine
        blocked: dict[int, str] = {}
        for _ in range(blocks):
            splits = w.splits
            if not splits:
                return
            split = splits[0] if len(splits) == 1 else self._pick(splits, blocked)
            if split is None:
                w.waiting = "; ".join(sorted(set(blocked.values())))
                return
            block = table[split.pc]
            machine.instructions += block.count
            w.at = block.pc
            try:
                if block.body is None:
                    if split.whole:
                        block.whole(w)
                    else:
                        block.masked(w, split.lanes)
                    split.pc = block.next_pc
                else:
                    reason = self._one(w, split, block)
                    if reason is not None:
                        machine.instructions -= block.count
                        if len(w.splits) == 1:
                            w.waiting = reason
                            return
                        blocked[id(split)] = reason
                        continue
            except EmulationError as error:
                raise _located(error, w, w.at) from None
            if len(w.splits) > 1:
                blocked.clear()
                _merge(w)

    def _pick(self, splits: list[Split], blocked: dict[int, str]) -> Split | None:
        free = [s for s in splits if id(s) not in blocked]
        if not free:
            return None
        if self.random.random() < self.schedule.split_rate:
            return self.random.choice(free)
        return min(free, key=lambda s: s.pc)

    def _one(self, w: Warp, split: Split, block: Block) -> str | None:
        """Executes one step; returns what it waits for, or None when the split moved on."""
        lanes = split.lanes
        if block.guard is not None:
            predicate = w.R[block.guard]
            lanes = lanes & (~predicate if block.guard_negated else predicate)
            if not np.count_nonzero(lanes):
                split.pc = block.next_pc
                return None
        result = block.body(w, lanes)
        if result is None:
            split.pc = block.next_pc
        elif result is EXIT:
            self._exit(w, split, lanes, block)
        elif isinstance(result, str):
            return result
        else:
            self._jump(w, split, result[0], result[1], block)
        return None

    @staticmethod
    def _jump(
        w: Warp, split: Split, taken: np.ndarray, target: int, block: Block
    ) -> None:
        rest = split.lanes & ~taken
        if not np.count_nonzero(rest):
            split.pc = target
            return
        w.splits.remove(split)
        w.splits += [Split(target, taken), Split(block.next_pc, rest)]

    def _exit(self, w: Warp, split: Split, lanes: np.ndarray, block: Block) -> None:
        w.exited = w.exited | lanes
        w.splits.remove(split)
        rest = split.lanes & ~lanes
        if rest.any():
            w.splits.append(Split(block.next_pc, rest))
        w.waiting = None
        if w.splits:
            return
        cta = w.cta
        if self.machine.strict:
            _check_warp_exit(w)
        if self.machine.checker is not None:
            self.machine.checker.end_warp(w)
        cta.live_warps -= 1
        cta.cluster.live_warps -= 1
        self.machine.progress += 1
        if not cta.live_warps and self.machine.strict:
            self.machine.check_cta_exit(cta)
        for barrier in cta.barriers.values():
            if barrier.arrived and barrier.implicit:
                barrier.expected -= 32
                complete_named(cta, barrier)
        complete_cluster(cta.cluster)

    # No progress -----------------------------------------------------------------------------------------------------

    def _watch(self, warps: list[Warp]) -> None:
        """Counts rounds without progress; once all warps repeat their state, lets virtual time jump."""
        machine = self.machine
        if machine.progress != self.seen_progress:
            self.seen_progress = machine.progress
            self.quiet, self.stalls = 0, 0
            self.stall_start = machine.time_ns
            return
        live = [w for w in warps if w.splits]
        if self._paused(live):
            return
        if self.quiet == 0:
            for w in live:
                w.probe.clear()
                w.stalled = w.read_time = False
        self.quiet += 1
        if self.quiet > MAX_QUIET_ROUNDS:
            self._no_progress(live)
        idle = all(w.waiting is not None for w in live)
        if self.quiet < QUIET_ROUNDS and not idle:
            return
        for w in live:
            if w.waiting is None and not w.stalled:
                state = _fingerprint(w)
                w.stalled = state in w.probe
                w.probe.add(state)
        repeated = all(w.stalled or w.waiting is not None for w in live)
        if repeated and not self._fire_one(late=True):
            self._jump_time(live)

    def _paused(self, live: list[Warp]) -> bool:
        waits = any(self.round < r for r in self.schedule.start_round.values())
        pauses = any(
            start <= self.round < start + n for start, n in self.schedule.pause.values()
        )
        return waits or pauses

    def _jump_time(self, live: list[Warp]) -> None:
        machine = self.machine
        self.stalls += 1
        clock = any(w.read_time for w in live)
        elapsed = machine.time_ns - self.stall_start
        if elapsed > STALL_LIMIT_NS or (
            self.stalls > STALLS_WITHOUT_CLOCK and not clock
        ):
            self._no_progress(live)
        machine.time_ns += max(FIRST_JUMP_NS, elapsed // 4)
        for w in live:
            w.probe.clear()
            w.stalled = False
            w.force_time_out = w.waiting is not None
            if w.waiting is not None and not w.sleep_until:
                w.waiting = None

    def _no_progress(self, live: list[Warp]) -> None:
        lines = []
        for w in live:
            program = w.cta.launch.program
            for s in w.splits:
                what = w.waiting or "spinning"
                at = (
                    f"line {program.line(s.pc)}: {program.text(s.pc)}"
                    if s.pc < len(program.function.instructions)
                    else "end"
                )
                lines.append(f"{w.name} lanes {_mask(s.lanes)}: {what}; at {at}")
        for rank, stream in enumerate(self.machine.streams):
            if stream and not stream[0].started:
                lines.append(f"rank {rank}: launch {stream[0].index} has not started")
        seconds = (self.machine.time_ns - self.stall_start) * 1e-9
        shown = "\n  ".join(lines[:60])
        raise EmulationError(
            "no-progress",
            f"nothing changes any more (virtual time waited: {seconds:.3g} s):\n  {shown}",
        )


def _mask(lanes: np.ndarray) -> str:
    return f"{sum(1 << int(n) for n in np.nonzero(lanes)[0]):#010x}"


def _fingerprint(w: Warp) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for s in w.splits:
        digest.update(s.pc.to_bytes(4, "little"))
        digest.update(np.packbits(s.lanes).tobytes())
    for register in w.R:
        digest.update(np.ascontiguousarray(register).data)
    return digest.digest()


def _merge(w: Warp) -> None:
    """Joins the splits that have met at one instruction."""
    by_pc: dict[int, Split] = {}
    for s in w.splits:
        other = by_pc.get(s.pc)
        if other is None:
            by_pc[s.pc] = s
        else:
            by_pc[s.pc] = Split(s.pc, s.lanes | other.lanes)
    if len(by_pc) != len(w.splits):
        w.splits = list(by_pc.values())


def _check_warp_exit(w: Warp) -> None:
    for lane, groups in w.bulk_groups.items():
        if groups.open or groups.pending(1):
            raise EmulationError(
                "exit",
                f"lane {lane} exits with bulk copies that still read shared memory",
            )
    if w.wgmma is not None and w.wgmma.group.executed < w.wgmma.issued:
        raise EmulationError("exit", "exit with wgmma operations in flight")
    if w.tensor_loads:
        raise EmulationError("exit", "exit with tcgen05.ld in flight")


def _located(
    error: EmulationError, w: Warp, pc: int, prefix: str = ""
) -> EmulationError:
    if error.line is not None:
        return error
    program = w.cta.launch.program
    if pc >= len(program.function.instructions):
        return EmulationError(
            error.kind, f"{prefix}end of the kernel, {w.name}: {error}", None
        )
    line = program.line(pc)
    message = str(error).removeprefix(f"{error.kind}: ")
    return EmulationError(
        error.kind,
        f"{prefix}line {line} `{program.text(pc)}`, {w.name}: {message}",
        line,
    )
