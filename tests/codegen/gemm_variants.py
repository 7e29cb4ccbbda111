"""The fused kernels by their parameters: exported names and sources that hold one alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from codegen.toolchain import compile_ptx
from kernel_layout import Call, Collective, Reducer

ELEMENTS = {"bf16": "__nv_bfloat16", "f16": "__half"}
LAYOUTS = {"kn": "kKN", "nk": "kNK"}


@dataclass(frozen=True)
class GemmVariant:
    """One compiled kernel.

    Attributes:
      tile: tile_m, tile_n, CTAs of a cluster.
    """

    family: ClassVar[str]
    target: ClassVar[str]
    header: ClassVar[str]
    threads: ClassVar[int]

    tile: tuple[int, int, int] = (128, 128, 1)
    layout: str = "kn"
    element: str = "bf16"
    reducer: Reducer = Reducer.PUSH
    collective: Collective = Collective.REDUCE_SCATTER

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.tile[2]

    @property
    def mode(self) -> str:
        """The collective as names of kernels have it."""
        return "rs" if self.collective == Collective.REDUCE_SCATTER else "ar"

    @property
    def label(self) -> str:
        """What tells this kernel from the others of its family."""
        tile = "x".join(map(str, self.tile))
        reducer = self.reducer.name.lower()
        return f"{self.element}_{self.layout}_{tile}_{reducer}_{self.mode}"

    @property
    def symbol(self) -> str:
        """The exported name, as dispatch builds it."""
        return f"jax_symm_{self.family}_{self.label}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers that the exporting macro takes."""
        return self.tile

    @property
    def export(self) -> str:
        """The macro that defines this kernel."""
        arguments = [
            *(self.element, ELEMENTS[self.element], self.layout, LAYOUTS[self.layout]),
            *map(str, self.sizes),
            *(self.reducer.name.lower(), f"{self.reducer.name.capitalize()}Reducer"),
            *(self.mode, "kReduceScatter" if self.mode == "rs" else "kAllReduce"),
        ]
        macro = f"JAX_SYMM_{self.family.upper()}_KERNEL"
        return f"{macro}({', '.join(arguments)})\n"

    def ptx(self) -> str:
        """The PTX of this kernel alone."""
        return compile_ptx(translation_unit([self]), self.target)

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


class Sm90Variant(GemmVariant):
    """A Hopper kernel."""

    family = "sm90"
    target = "sm_90a"
    header = "kernels/gemm_comm/sm90_kernel.cuh"
    threads = 384

    _stages: ClassVar = {(128, 256): 4, (128, 128): 6, (64, 128): 7}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers that the exporting macro takes."""
        tile_m, tile_n, cluster = self.tile
        return tile_m, tile_n, self._stages[tile_m, tile_n], cluster


class Sm100Variant(GemmVariant):
    """A Blackwell kernel."""

    family = "sm100"
    target = "sm_100f"
    header = "kernels/gemm_comm/sm100_export.cuh"
    threads = 320


def translation_unit(variants: Iterable[GemmVariant]) -> str:
    """A source with these kernels, all of one family."""
    variants = list(variants)
    include = f'#include "{variants[0].header}"\n'
    return include + "".join(variant.export for variant in variants)
