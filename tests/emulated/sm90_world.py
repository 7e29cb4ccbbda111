"""The SM90 kernels on the emulator's ranks: names, tensor maps, grids, calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from codegen.toolchain import compile_ptx
from comm_world import Launched, World
from kernel_layout import Call, Collective, Reducer
from ptx_emulator import Buffer, Kernel, encode_tensor_map

THREADS = 384
SHARED_NBYTES = 227 * 1024
TILE_K = 64
STAGES = {(128, 256): 4, (128, 128): 6, (64, 128): 7}
ELEMENTS = {"bf16": "__nv_bfloat16", "f16": "__half"}
LAYOUTS = {"kn": "kKN", "nk": "kNK"}


@dataclass(frozen=True)
class Variant:
    """One compiled kernel."""

    tile_m: int = 128
    tile_n: int = 256
    cluster: int = 1
    layout: str = "kn"
    element: str = "bf16"
    reducer: Reducer = Reducer.PUSH
    collective: Collective = Collective.REDUCE_SCATTER

    @property
    def tile(self) -> tuple[int, int, int]:
        """tile_m, tile_n, cluster."""
        return self.tile_m, self.tile_n, self.cluster

    @property
    def suffix(self) -> str:
        """Reducer and collective, as the names of kernels have them."""
        reduce_scatter = self.collective == Collective.REDUCE_SCATTER
        return f"{self.reducer.name.lower()}_{'rs' if reduce_scatter else 'ar'}"

    @property
    def symbol(self) -> str:
        """The exported name, as dispatch builds it."""
        return (
            f"jax_symm_sm90_{self.element}_{self.layout}_{self.tile_m}x{self.tile_n}"
            f"x{self.cluster}_{self.suffix}"
        )

    @property
    def source(self) -> str:
        """A translation unit with this kernel alone."""
        stages = STAGES[self.tile_m, self.tile_n]
        reduce_scatter = self.collective == Collective.REDUCE_SCATTER
        arguments = [
            *(self.element, ELEMENTS[self.element], self.layout, LAYOUTS[self.layout]),
            *(str(size) for size in (self.tile_m, self.tile_n, stages, self.cluster)),
            *(self.reducer.name.lower(), f"{self.reducer.name.capitalize()}Reducer"),
            *(("rs", "kReduceScatter") if reduce_scatter else ("ar", "kAllReduce")),
        ]
        return (
            '#include "kernels/gemm_comm/sm90_kernel.cuh"\n'
            f"JAX_SYMM_SM90_KERNEL({', '.join(arguments)})\n"
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


class Sm90World(World):
    """Ranks that call SM90 kernels. Buffers of w are in the kernel's own layout."""

    def __init__(self, largest: Call, **options: object):
        super().__init__(largest, arch="sm_90a", **options)
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, variant: Variant) -> Kernel:
        """The loaded kernel."""
        if variant.symbol not in self._kernels:
            module = self.machine.load(compile_ptx(variant.source, "sm_90a"))
            self._kernels[variant.symbol] = module.kernel(variant.symbol)
        return self._kernels[variant.symbol]

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
        """What the kernel takes: tensor maps of x and w, then the common parameters."""
        variant = self._variant
        if variant.layout == "kn":
            w_shape, w_box = (call.n, call.k), (64, TILE_K)
        else:
            w_shape = (call.k, call.n)
            w_box = (TILE_K, variant.tile_n // variant.cluster)
        x_shape, x_box = (call.k, call.total_rows), (TILE_K, variant.tile_m)
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
