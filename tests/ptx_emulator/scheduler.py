"""Runs launches to their end: random interleaving, asynchronous events, virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import EmulationError
from .executor import Executor, located
from .progress import ProgressWatch
from .schedule import Schedule
from .state import REGISTERS_PER_SM, Cluster, Launch
from .warp import Warp

if TYPE_CHECKING:
    from .machine import Machine

ROUND_NS = 20
STEP_BLOCKS = 12
SLOW_RANK_RATE = 0.03
STARVED_WARP_RATE = 0.01
LATE_RELEASE_RATE = 0.01


class Scheduler:
    def __init__(self, machine: Machine, schedule: Schedule):
        self.machine = machine
        self.schedule = schedule
        self.random = machine.random
        self.executor = Executor(machine, self.random, schedule.split_rate)
        self.watch = ProgressWatch(machine)
        self.round = 0
        self.slow_rank = schedule.slow_rank
        if self.slow_rank == "random":
            self.slow_rank = self.random.randrange(machine.ranks)

    # Main loop -----------------------------------------------------------------------

    def run(self) -> None:
        while True:
            self._start()
            warps = [w for c in self._clusters() for w in c.all_warps() if w.splits]
            if not warps and not self._pending_launches():
                if not self._fire_one(late=True):
                    return
                continue
            self._one_round(warps)
            self._retire()
            self.round += 1
            if not self._paused():
                live = [w for w in warps if w.splits]
                self.watch.after_round(live, lambda: self._fire_one(late=True))
            if not self.watch.probing:
                self.machine.time_ns += ROUND_NS

    def _one_round(self, warps: list[Warp]) -> None:
        random, schedule = self.random, self.schedule
        runnable = [w for w in warps if self._runnable(w)]
        random.shuffle(runnable)
        for w in runnable:
            if w.waiting is None and w.splits and self._chosen(w):
                self.executor.step(w, random.randrange(1, STEP_BLOCKS))
            while random.random() < schedule.async_rate and self._fire_one():
                pass
        if not runnable:
            self._fire_one(late=True)
        elif random.random() < LATE_RELEASE_RATE:
            self._release_late()

    def _runnable(self, w: Warp) -> bool:
        if w.waiting is None:
            start, rounds = self.schedule.pause.get(w.cta.launch.rank, (0, 0))
            return not start <= self.round < start + rounds
        if w.sleep_until and self.machine.time_ns >= w.sleep_until:
            w.sleep_until = 0
            w.waiting = None
            return True
        return False

    def _chosen(self, w: Warp) -> bool:
        """Whether a slow rank or a starved warp gets its turn."""
        if self.watch.probing:
            return True
        slow = self.slow_rank == w.cta.launch.rank
        if slow and self.random.random() > SLOW_RANK_RATE:
            return False
        starved = self._starved(w) == w.index
        return not starved or self.random.random() < STARVED_WARP_RATE

    def _starved(self, w: Warp) -> int | None:
        if self.schedule.starved_warp != "random":
            return self.schedule.starved_warp
        if w.cta.starved is None:
            w.cta.starved = self.random.randrange(len(w.cta.warps))
        return w.cta.starved

    def _paused(self) -> bool:
        schedule = self.schedule
        return any(self.round < r for r in schedule.start_round.values()) or any(
            start <= self.round < start + n for start, n in schedule.pause.values()
        )

    # Launches ------------------------------------------------------------------------

    def _clusters(self) -> list[Cluster]:
        return [c for stream in self.machine.streams for c in _resident(stream)]

    def _pending_launches(self) -> bool:
        absent = self.schedule.absent_ranks
        streams = enumerate(self.machine.streams)
        return any(stream and rank not in absent for rank, stream in streams)

    def _start(self) -> None:
        schedule = self.schedule
        for rank, stream in enumerate(self.machine.streams):
            late = self.round < schedule.start_round.get(rank, 0)
            if late or rank in schedule.absent_ranks:
                continue
            while stream and stream[0].done:
                self.machine.finish(stream.pop(0))
            if stream:
                self._fill(stream[0])

    def _fill(self, launch: Launch) -> None:
        launch.started = True
        size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
        room = max(1, self.machine.resident_ctas // size)
        while launch.pending and len(launch.resident) < room:
            self._start_cluster(launch)

    def _start_cluster(self, launch: Launch) -> None:
        cluster = Cluster(launch, launch.pending.pop(0))
        count, registers = (launch.threads + 31) // 32, _registers(launch)
        for cta in cluster.ctas:
            cta.warps = [Warp(cta, k, registers) for k in range(count)]
            cta.live_warps = count
            if self.machine.checker is not None:
                for w in cta.warps:
                    self.machine.checker.start_warp(w, launch)
        cluster.live_warps = count * len(cluster.ctas)
        launch.resident.append(cluster)
        self.machine.progress += 1

    def _retire(self) -> None:
        for stream in self.machine.streams:
            resident = _resident(stream)
            running = [c for c in resident if c.live_warps or c.pending_work]
            if len(running) < len(resident):
                stream[0].resident = running
                self.machine.progress += 1
                for c in resident:
                    if c not in running:
                        c.dissolve()

    # Asynchronous events -------------------------------------------------------------

    def _fire_one(self, late: bool = False) -> bool:
        """Lets one pending event happen; `late` also those that were held back."""
        machine = self.machine
        events = machine.events
        queues = [q for q in machine.queues if q[0].ready()] if machine.queued else []
        total = len(events) + len(queues)
        if not total:
            return late and self._release_late(True)
        machine.progress += 1
        k = self.random.randrange(total)
        if k >= len(events):
            queue, _ = queues[k - len(events)]
            self._guarded(queue.fire, queue.describe())
            return True
        events[k], events[-1] = events[-1], events[k]
        event = events.pop()
        event.cluster.pending_work -= 1
        machine.firing = (event.w, event.pc)
        self._guarded(event.fire, "asynchronous operation")
        return True

    def _release_late(self, everything: bool = False) -> bool:
        held, events = self.machine.late_events, self.machine.events
        for _ in range(len(held) if everything else min(1, len(held))):
            events.append(held.pop(self.random.randrange(len(held))))
        return bool(events)

    def _guarded(self, fire, what: str) -> None:
        try:
            fire()
        except EmulationError as error:
            w, pc = self.machine.firing
            raise located(error, w, pc, f"{what}, issued at ") from None


def _resident(stream: list[Launch]) -> list[Cluster]:
    return stream[0].resident if stream else []


def _registers(launch: Launch) -> int:
    """Registers a thread starts with: the kernel's limit, or what its bounds leave."""
    function = launch.program.function
    if function.max_registers:
        return function.max_registers
    threads = function.max_threads or launch.threads
    return min(255, REGISTERS_PER_SM // (threads * function.min_blocks)) // 8 * 8
