"""The emulated machine: ranks, their memories, launches, and runs.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .buffers import Buffer, SymmetricBuffer
from .errors import EmulationError, Report
from .loading import Kernel, LoadedModule, pack_arguments
from .memory import AddressSpace, Bytes
from .ordering.checker import Checker
from .program import Program
from .schedule import Schedule
from .scheduler import Scheduler
from .state import Cluster, Cta, Launch
from .warp import Warp

ARCHITECTURES = {
    "sm_90a": ("sm_90a", "sm_90"),
    "sm_100f": ("sm_100f", "sm_100a", "sm_100"),
}
MAX_RANKS = 72
MAX_SHARED_BYTES = 228 * 1024
MAX_THREADS = 1024
WARPGROUP = 4
START_NS = 1_000_000_000


@dataclass(frozen=True)
class RunResult:
    """What a run did.

    Attributes:
      instructions: warp instructions.
      seconds: of CPU time.
      reports: of the ordering checker.
      counters: operations by kind.
      virtual_ns: how far the machine's clock went.
    """

    instructions: int
    seconds: float
    reports: tuple[Report, ...]
    counters: dict[str, int]
    virtual_ns: int


@dataclass(frozen=True)
class Event:
    """Something that an asynchronous engine will do at a time of its choice."""

    fire: Callable[[], None]
    cluster: Cluster
    w: Warp
    pc: int
    late: bool


class Machine:
    """R ranks that execute PTX.

    Args:
      ranks: number of GPUs.
      arch: "sm_90a" or "sm_100f".
      resident_ctas: CTAs that run at one time on a rank (one cluster always does).
      strict: undefined behaviour is an error. False only for third-party kernels.
      check: run the ordering checker.

    Raises:
      ValueError: another architecture, or a number of ranks outside 1 to 72.
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
        if not 1 <= ranks <= MAX_RANKS:
            raise ValueError(f"ranks {ranks}, expected 1 to {MAX_RANKS}")
        self.ranks = ranks
        self.architecture = arch
        self.resident_ctas = resident_ctas
        self.strict = strict
        self.space = AddressSpace(ranks)
        self.streams: list[list[Launch]] = [[] for _ in range(ranks)]
        self.checker = Checker(self) if check else None
        self.time_ns = START_NS
        self.progress = 0
        self.instructions = 0
        self.counters: Counter = Counter()
        self.random = random.Random(0)
        self.schedule = Schedule()
        self.events: list[Event] = []
        self.late_events: list[Event] = []
        self.queues: list[tuple] = []
        self.queued = 0  # operations in them
        self.firing: tuple[Warp, int] | None = None
        self._elected: dict[bytes, int] = {}
        self._launches = 0
        self._allocations = 0

    # Memory --------------------------------------------------------------------------

    def _allocate(
        self, content, label: str | None, owner: str, at: int | None = None
    ) -> Buffer:
        """Poisoned memory of `content` bytes, or memory holding the array `content`."""
        self._allocations += 1
        size = int(content) if np.isscalar(content) else content.nbytes
        memory = Bytes(size, f"{label or f'buffer {self._allocations}'} of {owner}")
        buffer = Buffer(memory, self.space.reserve(size) if at is None else at)
        if not np.isscalar(content):
            buffer.write(content)
        return buffer

    def buffer(
        self, rank: int, content, *, label: str | None = None, at: int | None = None
    ) -> Buffer:
        """Global memory of one rank: a size in bytes (poisoned) or an array to copy.

        `at` is its address, where launches captured from host code expect it.
        """
        buffer = self._allocate(content, label, f"rank {rank}", at)
        self.space.map(rank, buffer.address, buffer.nbytes, [buffer.memory])
        return buffer

    def host_buffer(self, content, *, label: str | None = None) -> Buffer:
        """Pinned host memory, at the same address on every rank."""
        buffer = self._allocate(content, label, "the host")
        for r in range(self.ranks):
            self.space.map(r, buffer.address, buffer.nbytes, [buffer.memory])
        return buffer

    def symmetric(
        self,
        size: int,
        *,
        group: Sequence[int] | None = None,
        label: str | None = None,
    ) -> SymmetricBuffer:
        """`size` bytes on each rank of the group, with peer and multicast windows."""
        self._allocations += 1
        name = label or f"symmetric buffer {self._allocations}"
        return SymmetricBuffer(self.space, size, group or range(self.ranks), name)

    # Kernels -------------------------------------------------------------------------

    def load(self, text: str) -> LoadedModule:
        """Loads PTX on every rank; kernels are translated when first asked for.

        Raises:
          EmulationError: the text is not PTX that the emulator can parse.
          ValueError: it is for another architecture.
        """
        module = LoadedModule(text, self.ranks, self.buffer)
        target, accepted = module.module.target, ARCHITECTURES[self.architecture]
        if target not in accepted:
            raise ValueError(f"PTX for {target}, expected one of {accepted}")
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
        """Enqueues a launch on the rank's stream, after the launches before it.

        Args:
          rank: which GPU.
          kernel: from `LoadedModule.kernel`.
          grid: CTAs, up to three dimensions.
          block: threads, up to three dimensions.
          args: the parameter block as bytes, or one value a parameter: int, float,
            numpy scalar or array, bytes, Buffer.
          cluster: CTAs of a cluster, up to three dimensions.
          smem_bytes: dynamic shared memory.

        Raises:
          ValueError: sizes or arguments that the kernel does not take.
        """
        program = kernel.program
        sizes = _dim3(grid), _dim3(block), _dim3(cluster)
        sizes = _check_sizes(program, *sizes, smem_bytes)
        raw = np.frombuffer(pack_arguments(program.function, args), np.uint8)
        parameters = Bytes(max(raw.size, 32), f"parameters of {kernel.name}")
        parameters.fill(raw)
        variables = kernel.globals_by_rank[rank]
        self.streams[rank].append(
            Launch(
                self,
                rank,
                program,
                *sizes,
                smem_bytes,
                parameters,
                variables,
                self._launches,
            )
        )
        self._launches += 1

    # Running -------------------------------------------------------------------------

    def run(
        self,
        seed: int = 0,
        schedule: Schedule | None = None,
        *,
        on_race: str = "raise",
    ) -> RunResult:
        """Runs all enqueued launches to their end.

        Args:
          seed: decides every interleaving and every completion time.
          schedule: probabilities and adversities; see `Schedule`.
          on_race: "raise" stops at the checker's first report, "collect" returns all.

        Raises:
          EmulationError: undefined behaviour, no progress, or (kind "race") a race.
        """
        self.random = random.Random(seed)
        self.schedule = schedule or Schedule()
        self._elected.clear()
        if self.checker is not None:
            self.checker.begin(on_race)
        start, counted = time.process_time(), Counter(self.counters)
        instructions, began = self.instructions, self.time_ns
        with np.errstate(all="ignore"):
            Scheduler(self, self.schedule).run()
        self.firing = None
        return RunResult(
            self.instructions - instructions,
            time.process_time() - start,
            tuple(self.checker.reports) if self.checker is not None else (),
            dict(self.counters - counted),
            self.time_ns - began,
        )

    def finish(self, launch: Launch) -> None:
        """A launch has ended."""
        if self.checker is not None:
            self.checker.end_launch(launch)
        self.queues = [q for q in self.queues if q[1].live_warps]

    def elected_lane(self, lanes: np.ndarray) -> int:
        """The leader of elect.sync: any of the lanes, always the same within a run."""
        if not self.strict:
            return int(np.argmax(lanes))  # CUTLASS relies on the lowest one
        key = lanes.tobytes()
        if key not in self._elected:
            self._elected[key] = self.random.choice(np.nonzero(lanes)[0].tolist())
        return self._elected[key]

    def time_out_now(self, w: Warp) -> bool:
        """Whether a try_wait on an incomplete phase gives up now."""
        if w.force_time_out:
            w.force_time_out = False
            return True
        return self.random.random() < self.schedule.time_out_rate

    def post(
        self, cluster: Cluster, fire, pc: int, w: Warp, late: bool = False
    ) -> None:
        """Adds an asynchronous event; `late` marks the global write of a store."""
        cluster.pending_work += 1
        hold = late and self.random.random() < self.schedule.late_write_rate
        event = Event(fire, cluster, w, pc, late)
        (self.late_events if hold else self.events).append(event)

    def add_queue(self, queue, cluster: Cluster) -> None:
        """Adds an in-order engine with `cta`, `ready()`, `fire()` and `describe()`."""
        self.queues.append((queue, cluster))

    def check_cta_exit(self, cta: Cta) -> None:
        """Strict mode: what must be over when the last warp of a CTA ends."""
        for first in range(0, len(cta.warps), WARPGROUP):
            group = cta.warps[first : first + WARPGROUP]
            if any(w.register_changes != group[0].register_changes for w in group):
                what = f"the warps of a warpgroup of {cta.name} differ in setmaxnreg"
                raise EmulationError("registers", what)
        if cta.tensor.allocations:
            what = f"{cta.name} ends with tensor memory {cta.tensor.allocations}"
            raise EmulationError("tensor-memory", what)
        for event in self.events:
            if event.w.cta is cta and not event.late:
                what = f"{cta.name} ends with asynchronous operations in flight"
                raise EmulationError("exit", what)
        for queue, _ in self.queues:
            if queue.cta is cta and queue.ready():
                what = f"{cta.name} ends with work in the {queue.describe()}"
                raise EmulationError("exit", what)


def _dim3(value: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int | np.integer) else tuple(value)
    return tuple(int(v) for v in (*sizes, 1, 1, 1)[:3])


def _check_sizes(program: Program, grid, block, cluster, smem_bytes: int) -> tuple:
    """Grid, block and cluster of a launch, after the kernel's own requirements."""
    function = program.function
    if function.required_cluster:
        required = _dim3(function.required_cluster)
        if cluster not in ((1, 1, 1), required):
            raise ValueError(f"cluster {cluster}, the kernel requires {required}")
        cluster = required
    if min(grid) < 1 or any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise ValueError(f"grid {grid} is not a multiple of the cluster {cluster}")
    limit = min(function.max_threads or MAX_THREADS, MAX_THREADS)
    if not 1 <= block[0] * block[1] * block[2] <= limit:
        raise ValueError(f"block {block} exceeds the kernel's limit of {limit} threads")
    if function.required_block and _dim3(function.required_block) != block:
        raise ValueError(
            f"block {block}, the kernel requires {function.required_block}"
        )
    total = program.dynamic_start + smem_bytes
    if total > MAX_SHARED_BYTES:
        raise ValueError(f"{total} bytes of shared memory, at most {MAX_SHARED_BYTES}")
    return grid, block, cluster
