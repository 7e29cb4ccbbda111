"""An mbarrier object in shared memory: its phase, what its arrivals publish, and misuse of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import EmulationError
from .semantics.barrier_phase import BarrierPhase

if TYPE_CHECKING:
    from .state import Cta

BYTES = 8


class Mbarrier:
    def __init__(self, cta: Cta, offset: int, count: int):
        self.cta = cta
        self.offset = offset
        self.state = BarrierPhase(count)
        self.collected = None
        self.published: list = [None, None]
        # By arrivals of other CTAs that name cluster scope: for waits of that scope.
        self.collected_afar = None
        self.published_afar: list = [None, None]
        self.initialised = None
        self.fenced = False
        self.known: set[tuple[int, int]] = set()
        self.agent: int | None = None

    @property
    def name(self) -> str:
        return f"mbarrier {self.offset:#x} of {self.cta.name}"

    @property
    def phase(self) -> int:
        return self.state.phase

    def describe(self) -> str:
        s = self.state
        return f"{self.name} (phase {s.phase}, {s.pending} of {s.expected} arrivals and {s.transactions} bytes pending)"

    def _step(self, method, *arguments) -> None:
        phase = self.state.phase
        machine = self.cta.launch.machine
        if machine.strict and not self.cta.live_warps:
            raise EmulationError(
                "cluster", f"signal to the {self.name}, which has exited"
            )
        try:
            completed = method(*arguments)
        except ValueError as error:
            raise EmulationError("mbarrier", f"{error}: {self.describe()}") from None
        machine.progress += 1
        if completed:
            self.published[phase & 1] = self.collected
            self.published_afar[phase & 1] = self.collected_afar
            self.collected = self.collected_afar = None
            self.cta.cluster.wake()

    def arrive(self, count: int, expect: int, drop: bool = False) -> None:
        self._step(self.state.arrive, count, expect, drop)

    def expect(self, count: int) -> None:
        self._step(self.state.expect, count)

    def complete(self, count: int) -> None:
        self._step(self.state.complete, count)


def initialise(cta: Cta, offset: int, count: int) -> Mbarrier:
    if offset % BYTES:
        raise EmulationError(
            "alignment",
            f"mbarrier at shared offset {offset:#x}, expected a multiple of 8",
        )
    cta.check_shared(offset, BYTES)
    if offset in cta.mbarriers:
        raise EmulationError(
            "mbarrier",
            f"init of {cta.mbarriers[offset].name}, which is live (no mbarrier.inval)",
        )
    try:
        barrier = Mbarrier(cta, offset, count)
    except ValueError as error:
        raise EmulationError("mbarrier", str(error)) from None
    cta.mbarriers[offset] = barrier
    cta.shared.watch = lambda offsets, size: _refuse_overwrite(cta, offsets, size)
    return barrier


def find(cta: Cta, address: int) -> Mbarrier:
    owner, offset = cta.shared_of(address)
    barrier = owner.mbarriers.get(offset)
    if barrier is None:
        raise EmulationError(
            "mbarrier",
            f"no initialised mbarrier at shared offset {offset:#x} of {owner.name}",
        )
    if not owner.live_warps:
        raise EmulationError("cluster", f"{barrier.name}: that CTA has exited")
    return barrier


def _refuse_overwrite(cta: Cta, offsets: np.ndarray, size: int) -> None:
    low, high = int(offsets.min()), int(offsets.max()) + size
    for barrier in cta.mbarriers.values():
        at = barrier.offset
        if (
            at < high
            and low < at + BYTES
            and ((offsets < at + BYTES) & (offsets + size > at)).any()
        ):
            raise EmulationError("mbarrier", f"write over the live {barrier.name}")
