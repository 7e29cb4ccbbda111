"""What the published SM100 GEMM-RS / GEMM-AR kernel issues, computed by hand.

Source: vLLM's `Sm100GemmRsArBF16` (pull requests 52079 and 53053), read as a
description: 128 x BN x 64 tiles per CTA, two TMA loads a stage, four MMAs of K = 16
a stage (of the pair, with cta_group 2), one thread a row storing 32 bytes at a time,
one flag a tile and owner, one reduction slice a GEMM tile, exit flags a CTA.
Polls are counted once: what a kernel issues when nothing is late.
"""

from __future__ import annotations

from dataclasses import dataclass


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Problem:
    """One rank's share: x [m, k] times w [k, n], summed over `ranks`."""

    m: int
    n: int
    k: int
    ranks: int
    mode: str  # "reduce_scatter" | "all_reduce"


@dataclass(frozen=True)
class PublishedConfig:
    """cta_group and BN by the published rules."""

    cta_group: int
    tile_n: int

    @classmethod
    def select(cls, p: Problem) -> PublishedConfig:
        """The rules of its host wrapper."""
        even = _ceil(p.m, 128) % 2 == 0
        group = 2 if p.m >= 1024 or even else 1
        return cls(group, 256 if p.m * p.k >= 24 << 20 else 128)


def published_counts(p: Problem, sms: int = 152) -> dict[str, float]:
    """Instructions and bytes of one rank in one launch.

    Keys ending in `_bytes` count bytes. Requires what the kernel requires: n a multiple
    of the tile, k of 64, 128 of the number of ranks.
    """
    config = PublishedConfig.select(p)
    grid_m = _ceil(_ceil(p.m, 128), config.cta_group) * config.cta_group
    tiles = grid_m * (p.n // config.tile_n)  # of 128 x tile_n, one a CTA
    ctas = min(tiles, sms) // config.cta_group * config.cta_group
    steps = p.k // 64
    stage_bytes = (128 + config.tile_n // config.cta_group) * 64 * 2
    shard_rows = _ceil(p.m, p.ranks)
    vectors = shard_rows * p.n * 2 // 16  # 16-byte multimem operations of one rank
    owned_tiles = _ceil(shard_rows, 128) * (p.n // config.tile_n)
    reduce_scatter = p.mode == "reduce_scatter"
    return {
        "tcgen05.mma": tiles // config.cta_group * steps * 4,
        "tma_loads": tiles * steps * 2,
        "tma_load_bytes": tiles * steps * stage_bytes,
        "partial_stores": p.m * p.n * 2 // 32,
        "partial_store_bytes": p.m * p.n * 2,
        "multimem.ld_reduce": vectors,
        "multimem.ld_reduce_bytes": vectors * 16,
        "multimem.st": 0 if reduce_scatter else vectors,
        "multimem.st_bytes": 0 if reduce_scatter else vectors * 16,
        "output_store_bytes": vectors * 16 if reduce_scatter else 0,
        # The wrapper's clone of the all-reduced buffer, a kernel of its own.
        "clone_bytes": 0 if reduce_scatter else 2 * p.m * p.n * 2,
        # Tiles are published to each owner; 128-row tiles have one where 128 | shard_rows.
        "flag_publications": tiles * max(1, _ceil(128, shard_rows)),
        "flag_polls": tiles,
        "flag_consumptions": tiles,
        "flag_resets": owned_tiles,
        "exit_arrivals": ctas,
        "exit_polls": ctas,
        # Warp instructions: 4 warps x (2 in the epilogue + 2 in the communication) a tile,
        # one exit barrier of 4 warps and one allocation barrier of 5 a CTA.
        "barriers": tiles * 16 + ctas * 9,
    }
