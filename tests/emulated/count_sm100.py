"""Counts what the SM100 kernel executes, beside the published design's figures.

    PYTHONPATH=tests:tests/emulated python tests/emulated/count_sm100.py

Runs M = 1024, N = 512, K = 1536 on 8 ranks in the emulator and prints a Markdown table:
per rank, and per output tile of 128 x 128. `published_counts.py` has the other column.
"""

from __future__ import annotations

import argparse
from collections import Counter

from codegen.gemm_variants import Sm100Variant
from gemm_world import TILE_K, GemmWorld
from kernel_layout import Collective, Reducer
from observing import observing
from ptx_emulator import Schedule
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp
from published_counts import Problem, PublishedConfig, published_counts

TILE_M = 128
ROLES = ["epilogue"] * 4 + ["communication"] * 4 + ["MMA", "TMA"]
VECTOR_NBYTES = {"v8.b32": 32, "v4.b32": 16, "v4.f32": 16, "v4.u32": 16}


def _sort(role: str, opcode: str) -> str | None:
    """Which row of the table an instruction belongs to."""
    comm, epilogue = role == "communication", role == "epilogue"
    for prefix, row in (
        ("tcgen05.mma", "tcgen05.mma"),
        ("cp.async.bulk.tensor", "TMA loads"),
        ("multimem.ld_reduce", "multimem.ld_reduce"),
        ("multimem.st", "multimem.st"),
        ("bar.sync", "barriers"),
        ("bar.red", "barriers"),
        ("barrier.", "barriers"),
        ("atom", "claims and leave counts"),
        ("nanosleep", "pauses between polls"),
    ):
        if opcode.startswith(prefix):
            return row
    if opcode.startswith("st.release.sys"):
        return "flag publications" if epilogue else "result and done flags"
    if opcode.startswith("ld.acquire.sys"):
        return "flag polls" if comm else "done polls"
    wide = any(opcode.endswith(vector) for vector in VECTOR_NBYTES)
    if wide and opcode.startswith("st.global"):
        return "partial stores" if epilogue else "output stores"
    if wide and opcode.startswith("ld.global"):
        return "vector loads"
    return None


class Tally:
    """Operations (of lanes where lanes matter) and warp instructions, of all ranks."""

    def __init__(self) -> None:
        self.operations: Counter[str] = Counter()
        self.nbytes: Counter[str] = Counter()
        self.by_role: Counter[str] = Counter()

    def add(self, warp: Warp, lanes: int, instruction: Instruction) -> None:
        """One executed warp instruction."""
        role, opcode = ROLES[warp.index], instruction.opcode
        self.by_role[role] += 1
        row = _sort(role, opcode)
        if row is None:
            return
        once = row in ("barriers", "pauses between polls")
        self.operations[row] += 1 if once else lanes
        vector = ".".join(opcode.split(".")[-2:])
        if row.startswith("multimem"):
            vector = "v4.f32"
        self.nbytes[row] += VECTOR_NBYTES.get(vector, 0) * lanes


def measure(p: Problem, reducer: Reducer) -> Tally:
    """Runs one call; operations and bytes of all ranks together."""
    config = PublishedConfig.select(p)
    reduce_scatter = p.mode == "reduce_scatter"
    variant = Sm100Variant(
        (TILE_M, config.tile_n, config.cta_group),
        "nk",
        reducer=reducer,
        collective=Collective.REDUCE_SCATTER
        if reduce_scatter
        else Collective.ALL_REDUCE,
    )
    call = variant.call(p.ranks, p.m, p.n, p.k)
    world = GemmWorld(variant, call, check=False, resident_ctas=32)
    tiles = -(-p.m // TILE_M) * -(-p.n // config.tile_n)
    world.start_all(variant, call, clusters=tiles // config.cta_group)
    tally = Tally()
    with observing(tally.add):
        world.run(0, Schedule(async_rate=0.9))
    stage_bytes = (TILE_M + config.tile_n // config.cta_group) * TILE_K * 2
    tally.nbytes["TMA loads"] = tally.operations["TMA loads"] * stage_bytes // 2
    return tally


ROWS = {  # row: key of the published count
    "tcgen05.mma": "tcgen05.mma",
    "TMA loads": "tma_loads",
    "partial stores": "partial_stores",
    "multimem.ld_reduce": "multimem.ld_reduce",
    "multimem.st": "multimem.st",
    "vector loads": None,
    "output stores": None,
    "flag publications": "flag_publications",
    "flag polls": "flag_polls",
    "result and done flags": "exit_arrivals",
    "done polls": "exit_polls",
    "claims and leave counts": "flag_consumptions",
    "barriers": "barriers",
    "pauses between polls": None,
}


def table(p: Problem, tally: Tally) -> str:
    """Markdown: operations and bytes a rank, ours and the published design's."""
    published = published_counts(p)
    tiles = p.m // 128 * (p.n // PublishedConfig.select(p).tile_n)
    lines = [
        "| per rank | ours | bytes | published | ours per tile |",
        "|---|---|---|---|---|",
    ]
    for row, key in ROWS.items():
        ours = tally.operations[row] / p.ranks
        nbytes = tally.nbytes[row] / p.ranks
        theirs = f"{published[key]:,}" if key else ""
        lines.append(
            f"| {row} | {ours:,.0f} | {nbytes:,.0f} | {theirs} | {ours / tiles:,.1f} |"
        )
    for role in dict.fromkeys(ROLES):
        ours = tally.by_role[role] / p.ranks
        lines.append(
            f"| warp instructions, {role} | {ours:,.0f} | | | {ours / tiles:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=int, nargs=4, default=(1024, 512, 1536, 8))
    parser.add_argument("--only", choices=["reduce_scatter", "all_reduce"])
    arguments = parser.parse_args()
    m, n, k, ranks = arguments.shape
    for mode in (
        [arguments.only] if arguments.only else ["reduce_scatter", "all_reduce"]
    ):
        p = Problem(m, n, k, ranks, mode)
        for reducer in (Reducer.MULTICAST, Reducer.PUSH):
            print(f"\n{mode}, {reducer.name.lower()}, m={m} n={n} k={k} R={ranks}\n")
            print(table(p, measure(p, reducer)), flush=True)


if __name__ == "__main__":
    main()
