"""The kernels with tensor-core mainloops on the emulator's ranks, and calls of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from codegen.gemm_variants import GemmVariant
from comm_world import Launched, World, check_results
from kernel_layout import Call
from ptx_emulator import Buffer, Kernel, RunResult, Schedule, encode_tensor_map

SHARED_NBYTES = 227 * 1024
TILE_K = 64
SWIZZLE_COLUMNS = 64  # of 16 bits: 128 bytes


class GemmWorld(World):
    """Ranks that call such kernels. Buffers of w are in the kernel's own layout."""

    def __init__(self, variant: GemmVariant, largest: Call, **options: object):
        super().__init__(largest, arch=variant.target, **options)
        self._variant = variant
        self._loaded: dict[str, Kernel] = {}

    def use(self, variant: GemmVariant, ptx: str) -> Kernel:
        """Loads a kernel from this PTX."""
        kernel = self.machine.load(ptx).kernel(variant.symbol)
        self._loaded[variant.symbol] = kernel
        return kernel

    def start(
        self,
        rank: int,
        variant: GemmVariant,
        call: Call,
        *,
        clusters: int = 2,
        **options: object,
    ) -> Launched:
        """Enqueues the call on one rank, on at most `clusters` CTAs or CTA pairs."""
        self._variant = variant
        loaded = self._loaded.get(variant.symbol)
        return self.launch(
            rank,
            loaded or self.use(variant, variant.ptx()),
            call,
            grid=clusters * variant.cluster,
            block=variant.threads,
            element=variant.element,
            **options,
        )

    def start_all(
        self, variant: GemmVariant, call: Call, **options: object
    ) -> list[Launched]:
        """Enqueues the call on every rank."""
        return [self.start(rank, variant, call, **options) for rank in self.ranks]

    def store_weight(self, w: np.ndarray) -> np.ndarray:
        """w [k, n] as the kernel wants it in memory."""
        return w if self._variant.layout == "kn" else np.ascontiguousarray(w.T)

    def arguments(
        self, params: bytes, call: Call, x: Buffer, w: Buffer
    ) -> Sequence[object]:
        """What the kernel takes: tensor maps of x and w, then the common parameters."""
        tile_m, tile_n, cluster = self._variant.tile
        if self._variant.layout == "kn":
            w_shape, w_box = (call.n, call.k), (SWIZZLE_COLUMNS, TILE_K)
        else:
            w_shape, w_box = (call.k, call.n), (TILE_K, tile_n // cluster)
        x_shape, x_box = (call.k, call.total_rows), (TILE_K, tile_m)
        return [
            self._tensor_map(x, x_shape, x_box),
            self._tensor_map(w, w_shape, w_box),
            params,
        ]

    def launch_options(self) -> dict[str, int]:
        """Of the launch itself."""
        return {"cluster": self._variant.cluster, "smem_bytes": SHARED_NBYTES}

    def _tensor_map(
        self, buffer: Buffer, shape: tuple[int, int], box: tuple[int, int]
    ) -> bytes:
        return encode_tensor_map(
            buffer.address,
            shape,
            (shape[0] * 2,),
            box,
            dtype=self._variant.element,
            swizzle="128B",
        )


def payload(
    ranks: int,
    rows: int,
    n: int,
    batch: int = 1,
    float32_output: bool = False,
    tight: bool = False,
) -> int:
    """Bytes of a workspace for this call; `tight` has no room for whole cache lines."""
    columns = n if tight else -(-n // 64) * 64
    shards = batch * ranks * -(-rows // ranks)
    return shards * columns * (4 if float32_output else 2)


def run(
    variant: GemmVariant,
    schedule: Schedule | None = None,
    *,
    seed: int = 0,
    clusters: int = 1,
    resident: int | None = None,
    tight: bool = False,
    **at: int,
) -> RunResult:
    """One call of all ranks, checked; returns the emulator's account of it."""
    room = {name: value for name, value in at.items() if name != "k"}
    call = variant.call(**at, payload_bytes=payload(**room, tight=tight))
    resident_ctas = (resident or clusters) * variant.cluster
    world = GemmWorld(variant, call, resident_ctas=resident_ctas, seed=seed)
    launches = world.start_all(variant, call, clusters=clusters)
    result = world.run(seed, schedule)
    assert world.faults() == [None] * call.ranks
    check_results(launches)
    return result
