"""State of a running kernel: launches, clusters, CTAs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .errors import EmulationError
from .memory import CTA_SHIFT, SHARED_START, Bytes
from .numeric import u4, u8
from .tensor_memory import TensorMemory

if TYPE_CHECKING:
    from .machine import Machine
    from .program import Program
    from .warp import Warp

REGISTERS_PER_SM = 65536


@dataclass
class Launch:
    """One kernel launch on one rank; launches of a rank's stream run in order."""

    machine: Machine
    rank: int
    program: Program
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_bytes: int
    parameters: np.ndarray
    globals: dict[str, int]
    index: int
    pending: list[tuple[int, int, int]] = field(init=False)
    resident: list[Cluster] = field(default_factory=list)
    started: bool = False
    clocks: object = None
    agents: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Lists the origins of the clusters that have not started."""
        starts = [range(0, g, c) for g, c in zip(self.grid, self.cluster, strict=True)]
        self.pending = [
            (x, y, z) for z in starts[2] for y in starts[1] for x in starts[0]
        ]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def done(self) -> bool:
        return self.started and not self.pending and not self.resident


@dataclass(eq=False)
class Meeting:
    """One use of a barrier, from its first arrival: what the threads that wait get of it."""

    done: bool = False
    collected: object = None  # what the arrivals released
    votes: list = field(default_factory=list)


@dataclass
class NamedBarrier:
    arrived: int = 0
    expected: int = 0
    implicit: bool = False
    meeting: Meeting = field(default_factory=Meeting)

    def complete(self) -> None:
        self.arrived = 0
        self.meeting.done = True
        self.meeting = Meeting()


class Cluster:
    """CTAs that run together, and their cluster barrier."""

    def __init__(self, launch: Launch, origin: tuple[int, int, int]):
        self.launch = launch
        self.origin = origin
        self.barrier = NamedBarrier()
        self.ctas = [
            Cta(self, r)
            for r in range(launch.cluster[0] * launch.cluster[1] * launch.cluster[2])
        ]
        self.live_warps = 0
        self.pending_work = 0
        self.cta_group: int | None = None
        self.has_met = False  # a cluster barrier has completed: every CTA has started

    def dissolve(self) -> None:
        """Drops what the CTAs hold of each other: it is megabytes, and would wait for gc."""
        for cta in self.ctas:
            for w in cta.warps:
                w.tensor_queues.clear()
                w.in_flight.clear()
            cta.warps, cta.mbarriers, cta.warpgroups = [], {}, {}
            cta.shared.watch = None
        self.ctas = []

    def all_warps(self) -> list[Warp]:
        return [w for cta in self.ctas for w in cta.warps]

    def wake(self) -> None:
        for cta in self.ctas:
            for w in cta.warps:
                w.waiting = None


class Cta:
    """One CTA: shared memory, barriers, tensor memory, special registers, register pool."""

    def __init__(self, cluster: Cluster, rank: int):
        launch = cluster.launch
        self.cluster = cluster
        self.launch = launch
        self.rank = rank
        self.shared_base = rank << CTA_SHIFT
        program = launch.program
        size = program.static_end
        if launch.dynamic_bytes:
            size = program.dynamic_start + launch.dynamic_bytes
        shape, origin = launch.cluster, cluster.origin
        inside = (
            rank % shape[0],
            rank // shape[0] % shape[1],
            rank // (shape[0] * shape[1]),
        )
        index = tuple(o + i for o, i in zip(origin, inside, strict=True))
        self.index = index
        self.name = f"rank {launch.rank} launch {launch.index} CTA {index}"
        self.shared = Bytes(size, f"shared memory of {self.name}")
        self.shared.shared = True
        self.barriers: dict[int, NamedBarrier] = {}
        self.mbarriers: dict[int, object] = {}
        self.tensor = TensorMemory(self.name)
        self.warps: list[Warp] = []
        self.warpgroups: dict[int, object] = {}
        self.starved: int | None = None
        self.live_warps = 0
        self.free_registers = 0
        self.special = {
            "ctaid": [u4(v) for v in index],
            "nctaid": [u4(v) for v in launch.grid],
            "ntid": [u4(v) for v in launch.block],
            "cluster_ctaid": [u4(v) for v in inside],
            "cluster_nctaid": [u4(v) for v in shape],
            "clusterid": [u4(o // s) for o, s in zip(origin, shape, strict=True)],
            "nclusterid": [u4(g // s) for g, s in zip(launch.grid, shape, strict=True)],
            "cluster_ctarank": u4(rank),
            "cluster_nctarank": u4(shape[0] * shape[1] * shape[2]),
            "is_explicit_cluster": np.bool_(shape != (1, 1, 1)),
            "dynamic_smem_size": u4(launch.dynamic_bytes),
            "total_smem_size": u4(size - SHARED_START),
            "aggr_smem_size": u4(size),
            "gridid": u8(launch.index),
            "smid": u4(0),
            "nsmid": u4(launch.machine.resident_ctas),
            "nwarpid": u4(64),
        }

    def shared_of(self, address: int) -> tuple[Cta, int]:
        """The CTA of the cluster and the offset in it that a shared::cluster address names."""
        rank = address >> CTA_SHIFT
        if not 0 <= rank < len(self.cluster.ctas):
            raise EmulationError(
                "bounds",
                f"shared address {address:#x} names CTA {rank} of a cluster of {len(self.cluster.ctas)}",
            )
        return self.cluster.ctas[rank], address & ((1 << CTA_SHIFT) - 1)

    def check_shared(self, offset: int, size: int) -> None:
        if offset < SHARED_START or offset + size > self.shared.size:
            raise EmulationError(
                "bounds",
                f"shared offset {offset:#x} + {size} outside [{SHARED_START:#x}, {self.shared.size:#x}) of {self.name}",
            )
