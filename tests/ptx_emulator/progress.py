"""Tells waiting from hanging: time jumps when only spins run; else who waits for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import EmulationError
from .warp import Warp

if TYPE_CHECKING:
    from .machine import Machine

QUIET_ROUNDS = 40
FIRST_JUMP_NS = 1000
STALL_LIMIT_NS = 4_000_000_000_000
STALLS_WITHOUT_CLOCK = 32  # a spin may look at the clock once in several turns
STALLS_OF_DEADLINES = (
    8  # later ones would catch times that code sets itself to look around
)
MAX_QUIET_ROUNDS = 200_000


class ProgressWatch:
    """Watches for rounds in which nothing changes.

    Progress is a changed byte, an arrival, an asynchronous event, a warp that ends.
    Without it, time stands still and each running warp must come back to a state it
    was in (program counters and registers). Once all have, time jumps: to the next
    deadline, but by no more than a quarter of what has been waited, so that code that
    looks around at times does. A deadline is a time ahead that a 64-bit register holds
    from when things stopped changing. When nobody reads the clock, or after more than
    an hour of it, the program hangs.
    """

    def __init__(self, machine: Machine):
        self.machine = machine
        self.quiet = 0
        self._seen = -1
        self._stalls = 0
        self._start_ns = machine.time_ns
        self._deadlines: set[int] = set()

    @property
    def probing(self) -> bool:
        return self.quiet >= QUIET_ROUNDS

    def after_round(self, live: list[Warp], fire_one) -> None:
        """Called each round with the warps that have not ended.

        `fire_one` lets one pending asynchronous event happen, if there is one.
        """
        machine = self.machine
        if machine.progress != self._seen:
            self._seen = machine.progress
            self.quiet = self._stalls = 0
            self._deadlines = set()
            self._start_ns = machine.time_ns
            return
        if self.quiet == 0:
            for w in live:
                w.probe.clear()
                w.stalled = w.read_time = False
        self.quiet += 1
        if self.quiet > MAX_QUIET_ROUNDS:
            self._hang(live)
        idle = self.probing or all(w.waiting is not None for w in live)
        if idle and self._all_repeat(live) and not fire_one():
            self._jump(live)

    @staticmethod
    def _all_repeat(live: list[Warp]) -> bool:
        for w in live:
            if w.waiting is None and not w.stalled:
                state = _fingerprint(w)
                w.stalled = state in w.probe
                w.probe.add(state)
        return all(w.stalled or w.waiting is not None for w in live)

    def _jump(self, live: list[Warp]) -> None:
        machine = self.machine
        self._stalls += 1
        elapsed = machine.time_ns - self._start_ns
        clock = any(w.read_time for w in live)
        if elapsed > STALL_LIMIT_NS or (
            self._stalls > STALLS_WITHOUT_CLOCK and not clock
        ):
            self._hang(live)
        if self._stalls <= STALLS_OF_DEADLINES:
            self._deadlines |= _times_ahead(machine.time_ns, live)
        target = machine.time_ns + max(FIRST_JUMP_NS, elapsed // 4)
        ahead = (t for t in self._deadlines if machine.time_ns < t < target)
        machine.time_ns = min(ahead, default=target)
        for w in live:
            w.probe.clear()
            w.stalled = False
            w.force_time_out = w.waiting is not None
            if not w.sleep_until:
                w.waiting = None

    def _hang(self, live: list[Warp]) -> None:
        lines = [_describe(w, s) for w in live for s in w.splits]
        for rank, stream in enumerate(self.machine.streams):
            if stream and not stream[0].started:
                lines.append(f"rank {rank}: launch {stream[0].index} has not started")
        seconds = (self.machine.time_ns - self._start_ns) * 1e-9
        what = f"nothing changes any more (virtual time waited: {seconds:.3g} s):"
        raise EmulationError("no-progress", "\n  ".join([what, *lines[:60]]))


def _times_ahead(now: int, live: list[Warp]) -> set[int]:
    """Machine times after `now` that registers hold, by the clock of each warp's rank."""
    found: set[int] = set()
    for w in live:
        held = [r for r in w.R if r.dtype == np.uint64 and r.ndim == 1]
        if held:
            first, last = now + w.clock_skew_ns, now + w.clock_skew_ns + STALL_LIMIT_NS
            values = np.unique(np.concatenate(held))
            inside = values[(values > first) & (values < last)]
            found.update(int(v) - w.clock_skew_ns for v in inside)
    return found


def _describe(w: Warp, split) -> str:
    program = w.cta.launch.program
    lanes = sum(1 << int(n) for n in np.nonzero(split.lanes)[0])
    at = "the end"
    if split.pc < len(program.function.instructions):
        at = f"line {program.line(split.pc)}: {program.text(split.pc)}"
    return f"{w.name} lanes {lanes:#010x}: {w.waiting or 'spinning'}; at {at}"


def _fingerprint(w: Warp) -> int:
    """Of the program counters and registers; most of the latter are as they were."""
    held, hashes = w.fingerprinted
    for n, register in enumerate(w.R):
        if held[n] is not register:  # registers are replaced, never changed in place
            held[n], hashes[n] = register, hash(register.tobytes())
    splits = tuple((s.pc, s.lanes.tobytes()) for s in w.splits)
    return hash((splits, tuple(hashes)))
