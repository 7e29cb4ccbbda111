"""The emulated machine: ranks, their memories, kernels, launches, and runs.

machine = Machine(ranks=2, arch="sm_90a")
kernel = machine.load(ptx_text).kernel("k")
x = [machine.buffer(r, x_host) for r in range(2)]
for r in range(2):
    machine.launch(r, kernel, grid=4, block=128, args=[x[r], 1024])
machine.run(seed=1)
print(x[0].array(np.float32))
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .errors import EmulationError, Report
from .memory import AddressSpace, Bytes
from .program import Program
from .ptx import Module, parse
from .schedule import Schedule
from .scheduler import Scheduler
from .state import Cta, Launch

ARCHITECTURES = {
    "sm_90a": ("sm_90a", "sm_90"),
    "sm_100f": ("sm_100f", "sm_100a", "sm_100"),
}
MAX_SHARED_BYTES = 227 * 1024


class Buffer:
    """Memory of one rank (or of the host) and the address under which it was allocated.

    Every byte is poison until the host or a kernel writes it.
    """

    def __init__(self, memory: Bytes, address: int):
        self.memory = memory
        self.address = address
        self.nbytes = memory.size

    def write(self, data: np.ndarray, offset: int = 0) -> None:
        """Host write of an array's bytes at a byte offset."""
        self.memory.fill(np.ascontiguousarray(data).view(np.uint8).reshape(-1), offset)

    def array(self, dtype, shape=None, *, allow_poison: bool = False) -> np.ndarray:
        """A copy of the contents. Raises EmulationError when bytes of it were never written."""
        dtype = np.dtype(dtype)
        count = self.nbytes // dtype.itemsize if shape is None else int(np.prod(shape))
        size = count * dtype.itemsize
        if not allow_poison and not self.memory.valid[:size].all():
            bad = np.nonzero(self.memory.valid[:size] == 0)[0]
            raise EmulationError(
                "poison",
                f"{bad.size} bytes of {self.memory.label} were never written, first at {bad[0]:#x}",
            )
        flat = self.memory.data[:size].copy().view(dtype)
        return flat if shape is None else flat.reshape(shape)

    @property
    def written(self) -> np.ndarray:
        """bool[nbytes]: which bytes hold a value."""
        return self.memory.valid[: self.nbytes].astype(bool)


class SymmetricBuffer:
    """The same allocation on every rank of a group, mapped at every peer and behind one multicast window."""

    def __init__(self, machine: Machine, size: int, group: Sequence[int], label: str):
        self.group = tuple(group)
        self.nbytes = size
        self._memories = {}
        for r in group:
            self._memories[r] = Bytes(size, f"{label} of rank {r}")
            self._memories[r].rank = r
        self._unicast: dict[tuple[int, int], int] = {}
        self._multicast: dict[int, int] = {}
        replicas = [self._memories[r] for r in self.group]
        for r in self.group:
            for peer in self.group:
                base = machine.space.reserve(size, 1 << 21)
                machine.space.map(r, base, size, [self._memories[peer]])
                self._unicast[r, peer] = base
            base = machine.space.reserve(size, 1 << 21)
            machine.space.map(r, base, size, replicas, multicast=True)
            self._multicast[r] = base

    def buffer(self, rank: int) -> Buffer:
        """The physical memory of one rank, at that rank's own address."""
        return Buffer(self._memories[rank], self._unicast[rank, rank])

    def address(self, rank: int, peer: int) -> int:
        """Where `rank` sees the memory of `peer`; no other rank may use this address."""
        return self._unicast[rank, peer]

    def multicast_address(self, rank: int) -> int:
        """Where `rank` sees the multicast window: multimem instructions only."""
        return self._multicast[rank]


@dataclass(frozen=True)
class Kernel:
    program: Program
    globals_by_rank: tuple[dict[str, int], ...]

    @property
    def name(self) -> str:
        return self.program.function.name


class LoadedModule:
    def __init__(self, machine: Machine, text: str):
        self._text = text
        self.module: Module = parse(text)
        self._globals: list[dict[str, int]] = []
        self.variables: list[dict[str, Buffer]] = []
        for r in range(machine.ranks):
            buffers = {}
            for v in self.module.variables.values():
                if v.space in ("global", "const"):
                    raw = np.zeros(max(v.size_bytes, 1), np.uint8)
                    raw[: len(v.initial)] = np.frombuffer(v.initial, np.uint8)
                    buffers[v.name] = machine.buffer(r, raw, label=f"variable {v.name}")
            self.variables.append(buffers)
            self._globals.append({n: b.address for n, b in buffers.items()})

    @property
    def kernels(self) -> list[str]:
        return [f.name for f in self.module.functions.values() if f.is_entry]

    def kernel(self, name: str | None = None) -> Kernel:
        """The kernel of this name, or whose name contains it; without a name the only one."""
        names = self.kernels
        found = [n for n in names if n == name] or [
            n for n in names if name is None or name in n
        ]
        if len(found) != 1:
            raise KeyError(f"kernel {name!r}: expected one of {names}")
        return Kernel(_program(self._text, found[0]), tuple(self._globals))


@lru_cache(maxsize=64)
def _program(text: str, name: str) -> Program:
    module = parse(text)
    return Program(module, module.functions[name])


@dataclass(frozen=True)
class RunResult:
    """What a run did: warp instructions, wall seconds, the checker's reports, operation counts."""

    instructions: int
    seconds: float
    reports: tuple[Report, ...]
    counters: dict[str, int]
    virtual_ns: int


class Machine:
    """R ranks that execute PTX.

    Args:
      ranks: number of GPUs.
      arch: "sm_90a" or "sm_100f".
      resident_ctas: CTAs that run at the same time on one rank (at least one cluster always does).
      strict: undefined behaviour is an error. False only to run third-party kernels.
      check: run the ordering checker.
    """

    def __init__(
        self,
        ranks: int = 1,
        arch: str = "sm_100f",
        *,
        resident_ctas: int = 4,
        strict: bool = True,
        check: bool = True,
    ):
        if arch not in ARCHITECTURES:
            raise ValueError(f"arch {arch!r}, expected one of {sorted(ARCHITECTURES)}")
        if not 1 <= ranks <= 72:
            raise ValueError(f"ranks {ranks}, expected 1 to 72")
        self.ranks = ranks
        self.architecture = arch
        self.resident_ctas = resident_ctas
        self.strict = strict
        self.space = AddressSpace(ranks)
        self.streams: list[list[Launch]] = [[] for _ in range(ranks)]
        self.checker = None
        if check:
            from .checker import Checker

            self.checker = Checker(self)
        self.time_ns = 1_000_000_000
        self.progress = 0
        self.instructions = 0
        self.counters: Counter = Counter()
        self.random = random.Random(0)
        self.schedule = Schedule()
        self.events: list[tuple] = []
        self.late_events: list[tuple] = []
        self.queues: list[tuple] = []
        self.firing = None
        self._elected: dict[bytes, int] = {}
        self._launches = 0
        self._allocations = 0

    # Memory ----------------------------------------------------------------------------------------------------------

    def buffer(self, rank: int, content, *, label: str | None = None) -> Buffer:
        """Global memory of one rank: `content` is a size in bytes (poisoned) or an array (copied in)."""
        self._allocations += 1
        size = int(content) if np.isscalar(content) else content.nbytes
        memory = Bytes(size, f"{label or f'buffer {self._allocations}'} of rank {rank}")
        memory.rank = rank
        base = self.space.reserve(size)
        self.space.map(rank, base, size, [memory])
        buffer = Buffer(memory, base)
        if not np.isscalar(content):
            buffer.write(content)
        return buffer

    def symmetric(
        self, size: int, *, group: Sequence[int] | None = None, label: str | None = None
    ) -> SymmetricBuffer:
        """One allocation of `size` bytes on each rank of the group, with peer and multicast windows."""
        self._allocations += 1
        return SymmetricBuffer(
            self,
            size,
            group or range(self.ranks),
            label or f"symmetric {self._allocations}",
        )

    def host_buffer(self, content, *, label: str | None = None) -> Buffer:
        """Pinned host memory, at the same address on every rank."""
        self._allocations += 1
        size = int(content) if np.isscalar(content) else content.nbytes
        memory = Bytes(size, label or f"host buffer {self._allocations}")
        base = self.space.reserve(size)
        for r in range(self.ranks):
            self.space.map(r, base, size, [memory])
        buffer = Buffer(memory, base)
        if not np.isscalar(content):
            buffer.write(content)
        return buffer

    # Kernels ---------------------------------------------------------------------------------------------------------

    def load(self, text: str) -> LoadedModule:
        """Loads PTX on every rank. Kernels are translated when first asked for."""
        module = LoadedModule(self, text)
        if module.module.target not in ARCHITECTURES[self.architecture]:
            raise ValueError(
                f"PTX for {module.module.target}, expected one of {ARCHITECTURES[self.architecture]}"
            )
        return module

    def launch(
        self,
        rank: int,
        kernel: Kernel,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: bytes | Sequence,
        *,
        cluster: int | Sequence[int] = 1,
        smem_bytes: int = 0,
    ) -> None:
        """Enqueues a launch on the rank's stream; it runs after the launches before it.

        Args:
          rank: which GPU.
          kernel: from `LoadedModule.kernel`.
          grid, block, cluster: sizes, padded with ones to three dimensions.
          args: the parameter block as bytes, or one value a parameter: int, float, numpy scalar or array, bytes, Buffer.
          smem_bytes: dynamic shared memory.
        """
        program = kernel.program
        function = program.function
        shape, threads, size = _dim3(grid), _dim3(block), _dim3(cluster)
        if function.required_cluster:
            required = _dim3(function.required_cluster)
            if size not in ((1, 1, 1), required):
                raise ValueError(f"cluster {size}, the kernel requires {required}")
            size = required
        if any(g % c for g, c in zip(shape, size, strict=True)) or min(shape) < 1:
            raise ValueError(f"grid {shape} is not a multiple of the cluster {size}")
        count = threads[0] * threads[1] * threads[2]
        if not 1 <= count <= 1024 or (
            function.max_threads and count > function.max_threads
        ):
            raise ValueError(
                f"block {threads} exceeds the kernel's limit of {function.max_threads or 1024} threads"
            )
        if function.required_block and _dim3(function.required_block) != threads:
            raise ValueError(
                f"block {threads}, the kernel requires {function.required_block}"
            )
        if program.dynamic_start + smem_bytes > MAX_SHARED_BYTES + 1024:
            raise ValueError(
                f"{program.dynamic_start + smem_bytes - 1024} bytes of shared memory, at most {MAX_SHARED_BYTES}"
            )
        raw = np.frombuffer(pack_arguments(function, args), np.uint8)
        parameters = Bytes(max(raw.size, 32), f"parameters of {kernel.name}")
        parameters.fill(raw)
        launch = Launch(
            self,
            rank,
            program,
            shape,
            threads,
            size,
            smem_bytes,
            parameters,
            kernel.globals_by_rank[rank],
            self._launches,
        )
        self._launches += 1
        launch.pending = [
            (x, y, z)
            for z in range(0, shape[2], size[2])
            for y in range(0, shape[1], size[1])
            for x in range(0, shape[0], size[0])
        ]
        self.streams[rank].append(launch)

    # Running ---------------------------------------------------------------------------------------------------------

    def run(
        self, seed: int = 0, schedule: Schedule | None = None, *, on_race: str = "raise"
    ) -> RunResult:
        """Runs all enqueued launches to their end.

        Args:
          seed: decides every interleaving and completion time.
          schedule: probabilities and adversities; see `schedule.py`.
          on_race: "raise" stops at the first report of the checker, "collect" returns them all.

        Raises:
          EmulationError: undefined behaviour, an unknown form, no progress, or (kind "race") a race.
        """
        self.random = random.Random(seed)
        self.schedule = schedule or Schedule()
        self._elected.clear()
        if self.checker is not None:
            self.checker.begin(on_race)
        start, before, counted = (
            time.perf_counter(),
            self.instructions,
            Counter(self.counters),
        )
        began = self.time_ns
        with np.errstate(all="ignore"):
            Scheduler(self, self.schedule).run()
        reports = tuple(self.checker.reports) if self.checker is not None else ()
        return RunResult(
            self.instructions - before,
            time.perf_counter() - start,
            reports,
            dict(self.counters - counted),
            self.time_ns - began,
        )

    def finish(self, launch: Launch) -> None:
        if self.checker is not None:
            self.checker.end_launch(launch)
        self.queues = [q for q in self.queues if q[1].live_warps]

    def elected_lane(self, lanes: np.ndarray) -> int:
        """The leader elect.sync picks for these lanes: any of them, but always the same within a run."""
        if not self.strict:
            return int(
                np.argmax(lanes)
            )  # CUTLASS needs the lowest one, as hardware does
        key = lanes.tobytes()
        if key not in self._elected:
            self._elected[key] = self.random.choice(np.nonzero(lanes)[0].tolist())
        return self._elected[key]

    def time_out_now(self, w) -> bool:
        """Whether a try_wait on an incomplete phase gives up now."""
        if w.force_time_out:
            w.force_time_out = False
            return True
        return self.random.random() < self.schedule.time_out_rate

    def post(self, cluster, function, pc: int, w, late: bool = False) -> None:
        """Adds an asynchronous event; `late` marks the global write of a bulk store."""
        cluster.pending_work += 1
        event = (function, cluster, pc, w, late)
        hold = late and self.random.random() < self.schedule.late_write_rate
        (self.late_events if hold else self.events).append(event)

    def add_queue(self, queue, cluster) -> None:
        self.queues.append((queue, cluster))

    def check_cta_exit(self, cta: Cta) -> None:
        """Strict mode: what must be over when the last warp of a CTA ends."""
        if cta.tensor.allocations:
            raise EmulationError(
                "tensor-memory",
                f"{cta.name} ends with tensor memory allocated: {cta.tensor.allocations}",
            )
        for function, cluster, _, w, late in self.events:
            if (
                cluster is cta.cluster
                and not late
                and function is not None
                and w.cta is cta
            ):
                raise EmulationError(
                    "exit", f"{cta.name} ends with asynchronous operations in flight"
                )
        for queue, cluster in self.queues:
            if (
                cluster is cta.cluster
                and queue.ready()
                and getattr(queue, "w", cta.warps[0]).cta is cta
            ):
                raise EmulationError(
                    "exit", f"{cta.name} ends with work in the {queue.describe()}"
                )


def _dim3(value: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int | np.integer) else tuple(value)
    return tuple(int(v) for v in (*sizes, 1, 1, 1)[:3])


def pack_arguments(function, args) -> bytes:
    """The kernel's parameter block: raw bytes are taken as they are, values are placed by the declared offsets."""
    if isinstance(args, bytes | bytearray | np.ndarray):
        raw = bytes(args)
        if len(raw) != function.parameter_bytes:
            raise ValueError(
                f"{len(raw)} bytes of parameters for {function.name}, expected {function.parameter_bytes}"
            )
        return raw
    parameters = list(function.parameters.values())
    if len(args) != len(parameters):
        raise ValueError(
            f"{len(args)} arguments for {function.name}, expected {len(parameters)}"
        )
    block = bytearray(function.parameter_bytes)
    for value, p in zip(args, parameters, strict=True):
        block[p.offset : p.offset + p.size_bytes] = _encode(value, p)
    return bytes(block)


def _encode(value, p) -> bytes:
    if isinstance(value, Buffer):
        value = value.address
    if isinstance(value, bytes | bytearray):
        raw = bytes(value)
    elif isinstance(value, np.ndarray | np.generic):
        raw = value.tobytes()
    elif isinstance(value, float):
        raw = np.array(value, {4: np.float32, 8: np.float64}[p.size_bytes]).tobytes()
    elif isinstance(value, int):
        raw = (value & ((1 << 8 * p.size_bytes) - 1)).to_bytes(p.size_bytes, "little")
    else:
        raise TypeError(f"argument {p.name}: {type(value).__name__}")
    if len(raw) != p.size_bytes:
        raise ValueError(
            f"argument {p.name} has {len(raw)} bytes, expected {p.size_bytes}"
        )
    return raw
