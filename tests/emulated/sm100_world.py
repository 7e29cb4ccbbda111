"""The SM100 kernels on the emulator's ranks: names, tensor maps, grids, calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from codegen.toolchain import compile_ptx
from comm_world import Launched, World
from kernel_layout import Call, Collective, Reducer
from ptx_emulator import Buffer, Kernel, encode_tensor_map

THREADS = 320
SHARED_NBYTES = 227 * 1024
TILE_M = 128
TILE_K = 64


@dataclass(frozen=True)
class Variant:
    """One compiled kernel."""

    tile_n: int = 128
    cluster: int = 1
    layout: str = "kn"
    element: str = "bf16"
    reducer: Reducer = Reducer.PUSH
    collective: Collective = Collective.REDUCE_SCATTER

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Variant:
        """The kernel that a test configuration names."""
        names = ("layout", "element", "reducer", "collective")
        return cls(*config["shape"], *(config[name] for name in names))

    @property
    def tile(self) -> tuple[int, int, int]:
        """tile_m, tile_n, cluster."""
        return TILE_M, self.tile_n, self.cluster

    @property
    def symbol(self) -> str:
        """The exported name, as dispatch builds it."""
        reduce_scatter = self.collective == Collective.REDUCE_SCATTER
        return (
            f"jax_symm_sm100_{self.element}_{self.layout}_{TILE_M}x{self.tile_n}"
            f"x{self.cluster}_{self.reducer.name.lower()}_{'rs' if reduce_scatter else 'ar'}"
        )

    def call(self, ranks: int, rows: int, n: int, k: int, **fields: object) -> Call:
        """A call that this kernel serves."""
        return Call(
            ranks=ranks,
            rows=rows,
            n=n,
            k=k,
            reducer=self.reducer,
            collective=self.collective,
            tile=self.tile,
            **fields,
        )

    def ptx(self) -> str:
        """The PTX of this kernel alone, from the macro that exports all of them."""
        element = {"bf16": "__nv_bfloat16", "f16": "__half"}[self.element]
        layout = {"kn": "kKN", "nk": "kNK"}[self.layout]
        reducer = self.reducer.name.lower()
        policy = f"{reducer.capitalize()}Reducer"
        reduce_scatter = self.collective == Collective.REDUCE_SCATTER
        collective = "kReduceScatter" if reduce_scatter else "kAllReduce"
        source = (
            '#include "kernels/gemm_comm/sm100_export.cuh"\n'
            f"JAX_SYMM_SM100_KERNEL({self.element}, {element}, {self.layout}, {layout}, "
            f"{TILE_M}, {self.tile_n}, {self.cluster}, {reducer}, {policy}, "
            f"{'rs' if reduce_scatter else 'ar'}, {collective})\n"
        )
        return compile_ptx(source, "sm_100f")


class Sm100World(World):
    """Ranks that call SM100 kernels. Buffers of w are in the kernel's own layout."""

    def __init__(self, largest: Call, **options: object):
        super().__init__(largest, arch="sm_100f", **options)
        self._kernels: dict[str, Kernel] = {}

    def use(self, variant: Variant, ptx: str) -> Kernel:
        """Loads a kernel from this PTX."""
        kernel = self.machine.load(ptx).kernel(variant.symbol)
        self._kernels[variant.symbol] = kernel
        return kernel

    def kernel(self, variant: Variant) -> Kernel:
        """The loaded kernel."""
        return self._kernels.get(variant.symbol) or self.use(variant, variant.ptx())

    def start(
        self,
        rank: int,
        variant: Variant,
        call: Call,
        *,
        clusters: int = 2,
        **options: object,
    ) -> Launched:
        """Enqueues the call on one rank, on at most `clusters` CTAs or CTA pairs."""
        self._variant = variant
        return self.launch(
            rank,
            self.kernel(variant),
            call,
            grid=clusters * variant.cluster,
            block=THREADS,
            element=variant.element,
            **options,
        )

    def start_all(
        self, variant: Variant, call: Call, **options: object
    ) -> list[Launched]:
        """Enqueues the call on every rank."""
        return [self.start(rank, variant, call, **options) for rank in self.ranks]

    def store_weight(self, w: np.ndarray) -> np.ndarray:
        """w [k, n] as the kernel wants it in memory."""
        return w if self._variant.layout == "kn" else np.ascontiguousarray(w.T)

    def arguments(
        self, params: bytes, call: Call, x: Buffer, w: Buffer
    ) -> Sequence[object]:
        """What the kernel takes: tensor maps of both operands, then the common parameters."""
        variant = self._variant
        share_n = variant.tile_n // variant.cluster
        if variant.layout == "kn":
            w_shape, w_box = (call.n, call.k), (64, TILE_K)
        else:
            w_shape, w_box = (call.k, call.n), (TILE_K, share_n)
        x_shape, x_box = (call.k, call.total_rows), (TILE_K, TILE_M)
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
