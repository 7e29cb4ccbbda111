"""Ranks of the emulator that share a workspace, and the calls they make on it.

Operands are exact: rank r's x holds small integers times 2**r, so the sum over the
ranks names any rank that is missing or counted twice, and is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from codegen.toolchain import compile_ptx
from kernel_layout import Awaited, Call, Collective, FaultKind, Reducer, Verdict
from ptx_emulator import Buffer, Kernel, Machine, RunResult, Schedule
from ptx_emulator.numeric import FROM_F32, TO_F32

NEVER_NS = 1 << 50
RECORD_NBYTES = 40
DONE_OFFSET = 512  # in the signal pad


KERNELS = Path(__file__).parent / "kernels"
SIMT_KERNELS = KERNELS / "simt_gemm_comm.cu"
HOST_READER = KERNELS / "host_reader.cu"


def simt_ptx(kernel: str, *defines: str) -> str:
    """PTX of one kernel whose mainloop is a SIMT multiplication, such as "push_rs"."""
    lines = [f"#define {name}" for name in defines]
    for line in SIMT_KERNELS.read_text().splitlines():
        if not line.startswith("JAX_SYMM_KERNEL(") or f"({kernel}," in line:
            lines.append(line)
    return compile_ptx("\n".join(lines), "sm_90a")


@dataclass(frozen=True)
class Fault:
    """A rank's record of a fault, as its host reads it."""

    verdict: Verdict
    awaited: Awaited
    peer: int
    tile: int
    seen: int
    wanted: int

    @classmethod
    def read(cls, record: Buffer) -> Fault | None:
        raw = record.array(np.uint64)
        if raw[0] == 0:
            return None
        awaited, peer, tile = (int(x) for x in raw[1:3].view(np.uint32)[:3])
        verdict = Verdict.unpack(int(raw[0]))
        return cls(verdict, Awaited(awaited), peer, tile, int(raw[3]), int(raw[4]))


@dataclass(frozen=True)
class Launched:
    """A call made by one rank: its operands as float64 and its output."""

    call: Call
    rank: int
    x: np.ndarray
    w: np.ndarray
    output: Buffer
    element: str

    def result(self) -> np.ndarray:
        """The output's bits, [rows, n]."""
        dtype = np.uint32 if self.call.float32_output else np.uint16
        return self.output.array(dtype).reshape(-1, self.call.n)

    def is_poisoned(self) -> bool:
        """Whether every row of the product is NaN."""
        dtype = np.float32 if self.call.float32_output else np.float16
        values = self.result().view(dtype)
        if self.element == "bf16" and not self.call.float32_output:
            values = (self.result().astype(np.uint32) << 16).view(np.float32)
        return bool(np.isnan(values[self.owned_output_rows()]).all())

    def owned_output_rows(self) -> np.ndarray:
        """Rows of the output that are not padding."""
        return output_rows(self.call, self.rank)[0]


def output_rows(call: Call, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a rank's output that are not padding, and which product rows they are."""
    row = np.arange(call.total_rows)
    if call.collective == Collective.ALL_REDUCE:
        return row, row
    shard = call.rows_per_shard
    mine = row[row % call.rows // shard == rank]
    return mine // call.rows * shard + mine % call.rows % shard, mine


def expected(launches: Sequence[Launched], rank: int) -> np.ndarray:
    """Bits of the output: the f32 sum of exact partials, rounded once."""
    call, element = launches[rank].call, launches[rank].element
    total = sum(launch.x @ launch.w for launch in launches)
    here, there = output_rows(call, rank)
    reduce_scatter = call.collective == Collective.REDUCE_SCATTER
    rows = call.batch * call.rows_per_shard if reduce_scatter else call.total_rows
    values = np.zeros((rows, call.n), np.float32)
    values[here] = total[there]
    if call.float32_output and call.reducer != Reducer.MULTICAST:
        return values.view(np.uint32)
    rounded = FROM_F32[element](values)
    if not call.float32_output:
        return rounded
    # The switch returns sums in the type of the operands.
    return TO_F32[element](rounded).view(np.uint32)


class World:
    """R ranks with one workspace.

    `largest` decides the size of the workspace: later calls of any shape must fit in.
    With `host` there is one rank more, without a workspace, that stands for the host.
    """

    def __init__(
        self,
        largest: Call,
        *,
        arch: str = "sm_90a",
        resident_ctas: int = 4,
        check: bool = True,
        seed: int = 0,
        host: bool = False,
    ):
        self.ranks = range(largest.ranks)
        self.machine = Machine(
            largest.ranks + host, arch, resident_ctas=resident_ctas, check=check
        )
        self._random = np.random.default_rng(seed)
        self._largest = largest
        self._kernels: dict[tuple[str, str], Kernel] = {}
        sizes = largest.sizes()
        self.workspace = self.machine.symmetric(
            sizes.nbytes, group=self.ranks, label="workspace"
        )
        for rank in self.ranks:
            # As the allocator leaves it: pad and flags are zero, data is anything.
            zeros = np.zeros(sizes.data_offset, np.uint8)
            self.workspace.buffer(rank).write(zeros)
        self.abort_words = [self._host_words(2, "abort word") for _ in self.ranks]
        self.records = [
            self._host_words(RECORD_NBYTES // 4, "record") for _ in self.ranks
        ]

    def _host_words(self, count: int, label: str) -> Buffer:
        return self.machine.host_buffer(np.zeros(count, np.uint32), label=label)

    def kernel(self, ptx: str, name: str) -> Kernel:
        """A kernel of a PTX text, loaded once."""
        if (ptx, name) not in self._kernels:
            self._kernels[ptx, name] = self.machine.load(ptx).kernel(name)
        return self._kernels[ptx, name]

    def shaped(self, call: Call) -> Call:
        """The call on this world's workspace."""
        largest = self._largest
        all_reduce = largest.workspace_all_reduce
        if all_reduce is None:
            all_reduce = largest.collective == Collective.ALL_REDUCE
        fields = {"payload_bytes": largest.payload, "workspace_all_reduce": all_reduce}
        shaped = Call(**{**call.__dict__, **fields})
        assert shaped.sizes().fits, f"{call} does not fit in the workspace"
        return shaped

    def operands(self, call: Call, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """x [rows, k] and w [k, n]: sparse enough that partials are small integers."""
        x = self._random.integers(-1, 2, (call.total_rows, call.k))
        w = self._random.integers(0, 2, (call.k, call.n))
        # Beyond 16 powers an f32 sum would not be exact.
        return x * 2.0 ** (rank % 16), w * 1.0

    def launch(
        self,
        rank: int,
        kernel: Kernel,
        call: Call,
        *,
        grid: int = 2,
        block: int = 256,
        call_hash: int = 0x123456,
        timeout_ns: int = NEVER_NS,
        axis_index: int | None = None,
        element: str = "bf16",
    ) -> Launched:
        """Enqueues the call on one rank, with operands of its own."""
        call = self.shaped(call)
        x, w = self.operands(call, rank)
        machine = self.machine
        rows = output_rows(call, rank)[0].size
        if call.collective == Collective.REDUCE_SCATTER:
            rows = call.batch * call.rows_per_shard
        # All ones: NaN in every format. A row that nobody writes is noticed.
        poison = np.full(
            rows * call.n * (4 if call.float32_output else 2), 0xFF, np.uint8
        )
        output = machine.buffer(rank, poison, label="output")
        index = np.array([rank if axis_index is None else axis_index], np.int32)
        params = call.params(
            rank=rank,
            call_hash=call_hash,
            timeout_ns=timeout_ns,
            workspaces=[self.workspace.address(rank, peer) for peer in self.ranks],
            multicast_workspace=self.workspace.multicast_address(rank),
            output=output.address,
            axis_index=machine.buffer(rank, index, label="axis index").address,
            abort_word=self.abort_words[rank].address,
            fault_record=self.records[rank].address,
        )
        operands = [
            machine.buffer(
                rank, FROM_F32[element](value.astype(np.float32)), label=name
            )
            for name, value in (("x", x), ("w", self.store_weight(w)))
        ]
        arguments = self.arguments(params, call, *operands)
        machine.launch(rank, kernel, grid, block, arguments, **self.launch_options())
        return Launched(call, rank, x, w, output, element)

    def store_weight(self, w: np.ndarray) -> np.ndarray:
        """w [k, n] as the kernel wants it in memory."""
        return w

    def arguments(
        self, params: bytes, call: Call, x: Buffer, w: Buffer
    ) -> Sequence[object]:
        """What the kernel takes."""
        return [params, x, w]

    def launch_options(self) -> dict[str, int]:
        """Of the launch itself: cluster, dynamic shared memory."""
        return {}

    def run(self, seed: int = 0, schedule: Schedule | None = None) -> RunResult:
        return self.machine.run(seed, schedule)

    def lose(self, rank: int) -> None:
        """What each rank's host does when it learns that a peer's process has ended."""
        for word in self.abort_words:
            word.write(np.array([rank + 1], np.uint32))

    def read_records(self, ranks: Sequence[int]) -> None:
        """Lets the host wait for the records of these ranks, and read them."""
        host, machine = len(self.ranks), self.machine
        records = [self.records[rank].address for rank in ranks]
        target = machine.architecture
        kernel = machine.load(compile_ptx(HOST_READER.read_text(), target)).kernel()
        pointers = machine.buffer(host, np.array(records, np.uint64))
        copies = machine.buffer(host, len(records) * RECORD_NBYTES)
        machine.launch(host, kernel, 1, 1, [pointers, len(records), copies])

    def set_epoch(self, epoch: int) -> None:
        """Makes the workspace look as after that many launches."""
        for rank in self.ranks:
            pad = self.workspace.buffer(rank)
            pad.write(np.array([epoch], np.uint64))
            pad.write(np.full(len(self.ranks), epoch, np.uint64), DONE_OFFSET)

    def faults(self) -> list[Fault | None]:
        return [Fault.read(record) for record in self.records]


def launch_simt(
    world: World,
    call: Call,
    *,
    ranks: Sequence[int] | None = None,
    ptx: str | None = None,
    element: str = "bf16",
    **options: Any,
) -> list[Launched]:
    """Enqueues a call on some ranks, or all, with the SIMT kernel that serves it.

    `ptx` replaces that kernel's own; `options` are those of `World.launch`.
    """
    reduce_scatter = call.collective == Collective.REDUCE_SCATTER
    name = f"{call.reducer.name.lower()}_{'rs' if reduce_scatter else 'ar'}"
    if element != "bf16":
        name += f"_{element}"
    kernel = world.kernel(ptx or simt_ptx(name), name)
    return [
        world.launch(rank, kernel, call, element=element, **options)
        for rank in (world.ranks if ranks is None else ranks)
    ]


def check_results(launches: Sequence[Launched]) -> None:
    """Compares what one call left on every rank, bit for bit."""
    for rank, launch in enumerate(launches):
        got, want = launch.result(), expected(launches, rank)
        wrong = np.argwhere(got != want)
        if len(wrong):
            row, column = wrong[0]
            raise AssertionError(
                f"rank {rank}: {len(wrong)} of {got.size} elements differ, first at "
                f"row {row}, column {column}: got {got[row, column]:#x}, expected "
                f"{want[row, column]:#x}; {launch.call}"
            )


__all__ = [
    "Awaited",
    "Fault",
    "FaultKind",
    "Launched",
    "World",
    "check_results",
    "expected",
    "launch_simt",
    "simt_ptx",
]
