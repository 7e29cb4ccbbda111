"""A warp: registers, divergent splits, its memory accesses, registers in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .addressing import MULTICAST, UNICAST, Part, in_space, map_to_cta, resolve
from .errors import EmulationError
from .memory import UNSIGNED, Bytes
from .numeric import i8, u4, u8

if TYPE_CHECKING:
    from .state import Cta

__all__ = ["LANES", "MULTICAST", "UNICAST", "Part", "Split", "Warp"]

LANES = np.arange(32)
CLOCK_SKEW_NS = 1_234_567_891  # between the clocks of a rank and the next
# Registers start with rubbish. They are never changed in place, so these are shared.
_INITIAL = {
    0: np.zeros(32, bool),
    16: np.full((32, 2), 0xA5A5, u8),
    **{n: np.full(32, 0xA5, UNSIGNED[n]) for n in (1, 2, 4, 8)},
}


class Split:
    """Lanes of a warp at one instruction."""

    __slots__ = ("lanes", "pc", "whole")

    def __init__(self, pc: int, lanes: np.ndarray):
        self.pc = pc
        self.lanes = lanes
        self.whole = np.count_nonzero(lanes) == 32


class Warp:
    def __init__(self, cta: Cta, index: int, registers: int):
        launch = cta.launch
        self.cta = cta
        self.index = index
        self.machine = launch.machine
        self.clock_skew_ns = launch.rank * CLOCK_SKEW_NS
        self.R = [_INITIAL[n] for n in launch.program.function.register_bytes]
        self.registers = registers
        self.register_changes: list[int] = []  # setmaxnreg instructions, in order
        thread = index * 32 + LANES
        x, y, z = launch.block
        self.tid = [(thread % x), (thread // x % y), (thread // (x * y))]
        self.tid = [t.astype(u4) for t in self.tid]
        self.exists = thread < x * y * z
        self.exited = ~self.exists
        self.splits: list[Split] = [Split(0, self.exists.copy())]
        self.at = 0  # instruction being executed, for errors
        self.clocks = None
        self.local: Bytes | None = None
        self._start_waiting()
        self._start_engines()

    def _start_waiting(self) -> None:
        self.waiting: str | None = None
        self.sleep_until = 0
        self.step_state: dict = {}
        self.read_time = False
        self.force_time_out = False
        self.probe: set = set()
        self.fingerprinted = [None] * len(self.R), [0] * len(self.R)
        self.stalled = False

    def _start_engines(self) -> None:
        self.in_flight: dict[int, object] = {}  # register -> operation that writes it
        self.unfenced: set[int] = set()  # registers changed since wgmma.fence
        self.bulk_groups: dict[int, object] = {}
        self.tensor_queues: dict[int, object] = {}
        self.tensor_loads: list = []
        self.wgmma = None

    @property
    def name(self) -> str:
        return f"{self.cta.name} warp {self.index}"

    def set(self, register: int | None, value: np.ndarray, lanes: np.ndarray) -> None:
        """Writes the active lanes of a register; `value` is [32] of its width."""
        if register is not None:
            old = self.R[register]
            mask = lanes if old.ndim == 1 else lanes[:, None]
            value = np.asarray(value)
            if value.dtype != old.dtype:
                value = value.astype(old.dtype)
            self.R[register] = np.where(mask, value, old)

    def read_clock(self) -> int:
        """%globaltimer of this rank: those of two GPUs do not agree."""
        self.read_time = True
        return self.machine.time_ns + self.clock_skew_ns

    def converged(self, lanes: np.ndarray, mask: int) -> bool:
        """Whether every lane of the member mask that still runs is active."""
        wanted = ~self.exited
        if mask != 0xFFFFFFFF:
            wanted &= ((mask >> LANES) & 1).astype(bool)
        return not np.count_nonzero(wanted & ~lanes)

    # Memory --------------------------------------------------------------------------

    def resolve(self, space: str, address, size: int, lanes: np.ndarray) -> list[Part]:
        return resolve(self, space, address, size, lanes)

    def in_space(self, space: str, address: np.ndarray) -> np.ndarray:
        return in_space(self, space, address)

    def map_to_cta(self, address, rank, shared: bool):
        return map_to_cta(address, rank, shared)

    def weak(self, lanes, part: Part, size: int, write: bool, pc: int) -> None:
        """Tells the checker of a weak access."""
        checker = self.machine.checker
        if checker is not None and part.path is not None:
            accessing = lanes[part.chosen]
            checker.access(
                self, accessing, part.memory, part.offsets, size, write, part.path, pc
            )

    def strong(
        self, lanes, part: Part, size: int, kind: str, sem: str, scope: str, pc: int
    ) -> None:
        """Tells the checker of a strong access; `kind` is read, write or update."""
        checker = self.machine.checker
        if checker is not None and part.path is not None:
            accessing = lanes[part.chosen]
            checker.strong(self, accessing, part, size, kind, sem, scope, pc)

    def write(self, part: Part, values: np.ndarray) -> None:
        if part.memory.watch is not None:
            part.memory.watch(part.offsets, values.dtype.itemsize * values.shape[1])
        if part.memory.write(part.offsets, values):
            self.machine.progress += 1

    def load(
        self, space: str, address, element: int, count: int, act, pc: int
    ) -> np.ndarray:
        """Weak load: [32, count] unsigned elements, zero in inactive lanes."""
        self.at = pc
        lanes, address = _active(address, act)
        size = element * count
        out = np.zeros((32, count), UNSIGNED[element])
        for part in resolve(self, space, address, size, lanes):
            self.weak(lanes, part, size, False, pc)
            values = part.memory.read(part.offsets, element, count, self.machine.strict)
            if values.shape[0] == 32:
                return values
            out[lanes[part.chosen]] = values
        return out

    def store(self, space: str, address, values: list, act, pc: int) -> None:
        """Weak store of `values`, one [32] array a vector element."""
        self.at = pc
        lanes, address = _active(address, act)
        data = np.empty((32, len(values)), values[0].dtype)
        for n, v in enumerate(values):
            data[:, n] = v
        if lanes is not LANES:
            data = data[lanes]
        size = data.dtype.itemsize * len(values)
        for part in resolve(self, space, address, size, lanes):
            self.weak(lanes, part, size, True, pc)
            chosen = data[part.chosen]
            self.write(part, chosen)
            if self.machine.strict and not part.memory.holds(part.offsets, chosen):
                what = "lanes of one store write different values to one place"
                raise EmulationError("race", what)

    # Registers that an asynchronous operation still writes ---------------------------

    def check_in_flight(self, registers: tuple[int, ...]) -> None:
        for r in registers:
            if r in self.in_flight:
                what = "a register is used before the wait for what writes it"
                raise EmulationError("register-hazard", what)

    def rename(self, target: int, source: int, mask) -> None:
        """A move of a register in flight: the operation will write the target too."""
        op = self.in_flight.get(source)
        if op is None or mask is not None:
            self.check_in_flight((target, source))
            return
        old = self.in_flight.get(target)
        if old is not None and old is not op:
            old.targets[self.index].pop(target, None)
        op.targets[self.index][target] = op.targets[self.index][source]
        self.in_flight[target] = op


def _active(address, act) -> tuple[np.ndarray, np.ndarray]:
    """The active lanes and their addresses."""
    address = np.asarray(address)
    if address.ndim == 0:
        address = np.full(32, address, i8)
    if act is None:
        return LANES, address
    lanes = np.nonzero(act)[0]
    return lanes, address[lanes]
