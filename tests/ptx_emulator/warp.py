"""A warp: registers, divergent splits, and its ordinary memory accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import EmulationError
from .memory import (
    CTA_MASK, CTA_SHIFT, LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW, UNSIGNED, WINDOW_BYTES, Bytes,
)  # fmt: skip
from .numeric import i8, u4, u8

if TYPE_CHECKING:
    from .state import Cta

LANES = np.arange(32)
UNICAST, MULTICAST = 0, 1
# Registers start with rubbish. Register arrays are never changed in place, so these are shared.
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
    def __init__(self, cta: Cta, index: int):
        launch = cta.launch
        function = launch.program.function
        self.cta = cta
        self.index = index
        self.machine = launch.machine
        self.R = [_INITIAL[n] for n in function.register_bytes]
        thread = index * 32 + np.arange(32)
        x, y, z = launch.block
        self.tid = [
            (thread % x).astype(u4),
            (thread // x % y).astype(u4),
            (thread // (x * y)).astype(u4),
        ]
        self.exists = thread < x * y * z
        self.exited = ~self.exists
        self.splits: list[Split] = [Split(0, self.exists.copy())]
        self.waiting: str | None = None
        self.sleep_until = 0
        self.step_state: dict = {}
        self.local: Bytes | None = None
        self.registers = 0
        self.pending_registers: dict[int, object] = {}
        self.dirty_registers: set[int] = set()
        self.bulk_groups: dict[int, object] = {}
        self.tensor_loads: list = []
        self.tensor_stores = 0
        self.wgmma = None
        self.clocks = None
        self.read_time = False
        self.force_time_out = False
        self.at = 0
        self.probe: set = set()
        self.stalled = False

    @property
    def live(self) -> bool:
        return bool(self.splits)

    @property
    def name(self) -> str:
        return f"{self.cta.name} warp {self.index}"

    def set(self, register: int | None, value: np.ndarray, lanes: np.ndarray) -> None:
        """Writes the active lanes of a register; `value` is [32] of the register's width."""
        if register is not None:
            old = self.R[register]
            mask = lanes if old.ndim == 1 else lanes[:, None]
            value = np.asarray(value)
            if value.dtype != old.dtype:
                value = value.astype(old.dtype)
            self.R[register] = np.where(mask, value, old)

    def read_clock(self) -> int:
        self.read_time = True
        return self.machine.time_ns

    def converged(self, lanes: np.ndarray, mask: int) -> bool:
        """Whether every lane of the member mask that still runs is among the active lanes."""
        wanted = (
            ~self.exited
            if mask == 0xFFFFFFFF
            else ((mask >> LANES) & 1).astype(bool) & ~self.exited
        )
        return not np.count_nonzero(wanted & ~lanes)

    # Addresses ------------------------------------------------------------------------------------------------------

    def in_space(self, space: str, address: np.ndarray) -> np.ndarray:
        base = LOCAL_WINDOW if space == "local" else SHARED_WINDOW
        inside = (address >= u8(base)) & (address < u8(base + WINDOW_BYTES))
        if space == "global":
            return ~(
                (address >= u8(PARAM_WINDOW))
                & (address < u8(SHARED_WINDOW + WINDOW_BYTES))
            )
        if space == "shared::cta":
            return inside & (
                ((address - u8(base)) >> u8(CTA_SHIFT)) == u8(self.cta.rank)
            )
        return inside

    def map_to_cta(self, address, rank, shared: bool):
        address = np.asarray(address)
        base = 0 if shared else SHARED_WINDOW
        offset = (address - address.dtype.type(base)) & address.dtype.type(CTA_MASK)
        return (
            offset
            + (np.asarray(rank).astype(address.dtype) << address.dtype.type(CTA_SHIFT))
            + address.dtype.type(base)
        )

    def resolve(self, space: str, address: np.ndarray, size: int):
        """Splits lane addresses by memory: list of (memory, offsets, selection of lanes, kind of path)."""
        if space == "generic":
            space, address = self._generic(address, size)
            if space == "mixed":
                return address
        if address.size and ((address & (size - 1)) != 0).any():
            bad = int(address[np.argmax((address & (size - 1)) != 0)])
            raise EmulationError(
                "alignment", f"address {bad:#x} of a {size}-byte access"
            )
        if space == "shared":
            return self._shared(address, size)
        if space == "global":
            return self._global(address, size)
        if space == "local":
            return self._local(address, size)
        return self._parameters(address, size)

    def _generic(self, address: np.ndarray, size: int):
        first = int(address[0])
        for base, space in (
            (SHARED_WINDOW, "shared"),
            (LOCAL_WINDOW, "local"),
            (PARAM_WINDOW, "param"),
        ):
            inside = (address >= base) & (address < base + WINDOW_BYTES)
            if base <= first < base + WINDOW_BYTES:
                if inside.all():
                    return space, address - (0 if space == "param" else base)
                break
            if inside.any():
                break
        else:
            return "global", address
        parts = []
        for lane in range(address.size):
            for memory, offsets, _, path in self.resolve(
                "generic", address[lane : lane + 1], size
            ):
                parts.append((memory, offsets, np.array([lane]), path))
        return "mixed", parts

    def _shared(self, address: np.ndarray, size: int):
        rank = address >> CTA_SHIFT
        low, high = int(rank.min()), int(rank.max())
        parts = []
        for r in range(low, high + 1):
            chosen = slice(None) if low == high else np.nonzero(rank == r)[0]
            offsets = address[chosen] & CTA_MASK
            if offsets.size == 0:
                continue
            cta, _ = self.cta.shared_of(r << CTA_SHIFT)
            first, last = int(offsets.min()), int(offsets.max())
            if first < SHARED_START or last + size > cta.shared.size:
                cta.check_shared(first, size)
                cta.check_shared(last, size)
            if not cta.live_warps:
                raise EmulationError(
                    "cluster", f"shared memory of {cta.name}, which has exited"
                )
            parts.append((cta.shared, offsets, chosen, UNICAST))
        return parts

    def _global(self, address: np.ndarray, size: int):
        space, rank = self.machine.space, self.cta.launch.rank
        low, high = int(address.min()), int(address.max())
        window = space.find(rank, low)
        if high + size <= window.end:
            return [self._window_part(window, address, slice(None))]
        parts = []
        for lane in range(address.size):
            window, _ = space.contiguous(rank, int(address[lane]), size)
            parts.append(
                self._window_part(window, address[lane : lane + 1], np.array([lane]))
            )
        return parts

    @staticmethod
    def _window_part(window, address, chosen):
        if window.multicast:
            raise EmulationError(
                "multicast",
                f"ordinary access through the multicast address of {window.replicas[0].label}",
            )
        return (
            window.replicas[0],
            address - (window.base - window.offset),
            chosen,
            UNICAST,
        )

    def _local(self, address: np.ndarray, size: int):
        program = self.cta.launch.program
        if self.local is None:
            self.local = Bytes(32 * program.local_bytes, f"local memory of {self.name}")
        if int(address.min()) < 0 or int(address.max()) + size > program.local_bytes:
            raise EmulationError(
                "bounds",
                f"local offset {int(address.max()):#x} of {program.local_bytes} bytes",
            )
        lanes = self.access_lanes
        return [(self.local, lanes * program.local_bytes + address, slice(None), None)]

    def _parameters(self, address: np.ndarray, size: int):
        offsets = address - PARAM_WINDOW
        memory = self.cta.launch.parameters
        if int(offsets.min()) < 0 or int(offsets.max()) + size > memory.size:
            raise EmulationError(
                "bounds",
                f"kernel parameter offset {int(offsets.max())} of {memory.size} bytes",
            )
        return [(memory, offsets, slice(None), None)]

    # Weak accesses ---------------------------------------------------------------------------------------------------

    def load(
        self, space: str, address, element: int, count: int, act, pc: int
    ) -> np.ndarray:
        """Weak load: [32, count] unsigned elements, zero in inactive lanes."""
        self.at = pc
        address = np.asarray(address)
        if address.ndim == 0:
            address = np.full(32, address, i8)
        lanes = LANES if act is None else np.nonzero(act)[0]
        self.access_lanes = lanes
        size = element * count
        parts = self.resolve(space, address if lanes is LANES else address[lanes], size)
        out = np.zeros((32, count), UNSIGNED[element])
        checker = self.machine.checker
        for memory, offsets, chosen, path in parts:
            values = memory.read(offsets, element, count, self.machine.strict)
            if path is not None and checker is not None:
                checker.access(
                    self, lanes[chosen], memory, offsets, size, False, path, pc
                )
            if lanes is LANES and isinstance(chosen, slice):
                return values
            out[lanes[chosen]] = values
        return out

    def store(self, space: str, address, values: list, act, pc: int) -> None:
        """Weak store of `values`, one [32] array a vector element."""
        self.at = pc
        address = np.asarray(address)
        if address.ndim == 0:
            address = np.full(32, address, i8)
        lanes = LANES if act is None else np.nonzero(act)[0]
        self.access_lanes = lanes
        data = np.empty((32, len(values)), values[0].dtype)
        for n, v in enumerate(values):
            data[:, n] = v
        if lanes is not LANES:
            address, data = address[lanes], data[lanes]
        size = data.dtype.itemsize * len(values)
        machine = self.machine
        for memory, offsets, chosen, path in self.resolve(space, address, size):
            if path is not None and machine.checker is not None:
                machine.checker.access(
                    self, lanes[chosen], memory, offsets, size, True, path, pc
                )
            if memory.watch is not None:
                memory.watch(offsets, size)
            if memory.write(offsets, data[chosen]):
                machine.progress += 1

    # Registers that an asynchronous operation still writes -----------------------------------------------------------

    def check_pending(self, registers: tuple[int, ...], pc: int) -> None:
        for r in registers:
            if r in self.pending_registers:
                raise EmulationError(
                    "register-hazard",
                    "a register is used before the asynchronous operation that writes it was waited for",
                )

    def rename(self, target: int, source: int, mask) -> bool:
        """A move of a register in flight: the operation will write the target too. False when it is not in flight."""
        op = self.pending_registers.get(source)
        if op is None or mask is not None:
            self.check_pending((target, source), 0)
            return False
        old = self.pending_registers.get(target)
        if old is not None and old is not op:
            old.targets[self.index].pop(target, None)
        op.targets[self.index][target] = op.targets[self.index][source]
        self.pending_registers[target] = op
        return True
