"""Times the operations against what XLA does with the same inputs.

Both sides are one compiled program over several sets of inputs, more than a cache
holds, each call waiting for the one before. The programs of a shape take turns, so that
a change of clocks or load meets both; the row has medians and their spread. On one
device the operation is the matrix product alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_symm.ops._rules import Op
from jax_symm.ops.gemm import gemm_all_reduce, gemm_reduce_scatter, plan
from jax_symm.ops.reference import local_product
from jax_symm.workspace import Workspace

SUMMARY = "time the operations against XLA's own, as JSON rows"

# Row-parallel layers by name: n and k of the whole layer (public model configurations).
LAYERS: dict[str, tuple[int, int]] = {
    "llama-3.1-8b-down": (4096, 14336),
    "llama-3.1-70b-down": (8192, 28672),
    "kimi-k3-o-proj": (7168, 12288),
    "deepseek-v3-o-proj": (7168, 16384),
    "qwen3-32b-down": (5120, 25600),
}
_OPS: tuple[Op, ...] = ("reduce_scatter", "all_reduce")
_CACHE_BYTES = 150e6


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape: `m` rows by `n` columns, `k` per rank, and where it comes from."""

    name: str
    m: int
    n: int
    k: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the subcommand."""
    parser.description = __doc__
    parser.add_argument("--layers", nargs="*", default=list(LAYERS), choices=LAYERS)
    parser.add_argument("--m", type=int, nargs="*", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--tp", type=int, default=0, help="split of k; 0: the devices")
    parser.add_argument("--w-layout", choices=("kn", "nk"), default="kn")
    parser.add_argument("--path", default="auto", help="as path= of the operations")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="JSON file; default: standard output")


def run(arguments: argparse.Namespace) -> int:
    """Times every case and writes the rows; returns the exit status."""
    devices = jax.devices()
    mesh = Mesh(np.asarray(devices, dtype=object), ("tp",), axis_types=(AxisType.Auto,))
    split = arguments.tp or len(devices)
    rows: list[dict[str, Any]] = []
    for name in arguments.layers:
        n, k = LAYERS[name]
        for m in arguments.m:
            rows += time_case(mesh, Case(name, m, n, k // split), arguments)
    document = {
        "machine": describe_machine(),
        "command": " ".join(["python -m jax_symm", *sys.argv[1:]]),
        "rows": rows,
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    return 0


def time_case(
    mesh: Mesh, case: Case, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """The rows of one shape: one for each operation, or one for the product alone."""
    ranks = mesh.size
    ops = _OPS if ranks > 1 else _OPS[:1]
    xs, ws = make_inputs(mesh, case, arguments.w_layout)
    rows = []
    with Workspace(
        mesh, "tp", max_m=case.m, n=case.n, ops=ops, multicast="never"
    ) as workspace:
        for op in ops:
            chosen = _plan(op, case, workspace, arguments)
            fused = compile_program(mesh, op, arguments.w_layout, workspace, chosen)
            plain = compile_program(mesh, op, arguments.w_layout, None, "xla")
            programs = {"ours": fused, "xla": plain}
            times = interleave(programs, (xs, ws), arguments.rounds, len(xs))
            rows.append(make_row(op, case, ranks, chosen, times))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _plan(
    op: str, case: Case, workspace: Workspace, arguments: argparse.Namespace
) -> str:
    """The path to time: where `auto` would leave a call to XLA, the peer path."""
    if arguments.path != "auto":
        return str(arguments.path)
    w_shape = (case.k, case.n) if arguments.w_layout == "kn" else (case.n, case.k)
    chosen = plan(
        op,  # type: ignore[arg-type]
        jax.ShapeDtypeStruct((case.m, case.k), jnp.bfloat16),
        jax.ShapeDtypeStruct(w_shape, jnp.bfloat16),
        "tp",
        workspace=workspace,
        w_layout=arguments.w_layout,
    )
    on_cpu = workspace.spec.platform == "cpu"
    return "host" if on_cpu else ("peer" if chosen.path == "xla" else chosen.path)


def make_inputs(
    mesh: Mesh, case: Case, w_layout: str
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Sets of operands, sharded over k, together larger than a cache."""
    per_set = 2 * (case.m * case.k + case.k * case.n + case.m * case.n)
    count = max(2, min(8, 1 + int(_CACHE_BYTES // per_set)))
    kn = w_layout == "kn"
    x_sharding = NamedSharding(mesh, P(None, "tp"))
    w_sharding = NamedSharding(mesh, P("tp", None) if kn else P(None, "tp"))
    k = case.k * mesh.size

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        left, right = jax.random.split(key)
        w_shape = (k, case.n) if kn else (case.n, k)
        x = jax.random.normal(left, (case.m, k), jnp.bfloat16)
        return x, jax.random.normal(right, w_shape, jnp.bfloat16) * k**-0.5

    make = jax.jit(draw, out_shardings=(x_sharding, w_sharding))
    drawn = [make(jax.random.key(i)) for i in range(count)]
    return [x for x, _ in drawn], [w for _, w in drawn]


def compile_program(
    mesh: Mesh, op: str, w_layout: Any, workspace: Workspace | None, path: Any
) -> Callable[..., Any]:
    """All sets of inputs, one call after the other."""
    alone = mesh.size == 1
    scatter = op == "reduce_scatter"

    def call(x: jax.Array, w: jax.Array) -> jax.Array:
        if alone and workspace is None:
            return local_product(x, w, w_layout, x.dtype)
        fused = gemm_reduce_scatter if scatter else gemm_all_reduce
        return fused(x, w, "tp", workspace=workspace, w_layout=w_layout, path=path)

    def chain(xs: Sequence[jax.Array], ws: Sequence[jax.Array]) -> list[jax.Array]:
        outputs: list[jax.Array] = []
        for x, w in zip(xs, ws, strict=True):
            if outputs:
                # Nothing of this call may run before the last one has ended.
                x, w, outputs[-1] = lax.optimization_barrier((x, w, outputs[-1]))
            outputs.append(call(x, w))
        return outputs

    return jax.jit(
        jax.shard_map(
            chain,
            mesh=mesh,
            in_specs=(
                P(None, "tp"),
                P("tp", None) if w_layout == "kn" else P(None, "tp"),
            ),
            out_specs=P("tp", None) if scatter else P(),
            check_vma=not alone,
        )
    )


def interleave(
    programs: dict[str, Callable[..., Any]], operands: Any, rounds: int, calls: int
) -> dict[str, list[float]]:
    """Microseconds per call of each program, round by round."""
    for program in programs.values():
        jax.block_until_ready(program(*operands))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            jax.block_until_ready(program(*operands))  # hides the dispatch of the next
            begin = time.perf_counter()
            repeats = 3
            for _ in range(repeats):
                result = program(*operands)
            jax.block_until_ready(result)
            times[name].append(1e6 * (time.perf_counter() - begin) / (repeats * calls))
    return times


def make_row(
    op: str, case: Case, ranks: int, path: str, times: dict[str, list[float]]
) -> dict[str, Any]:
    """One row of the document."""
    ours, xla = (statistics.median(times[name]) for name in ("ours", "xla"))
    share = (1 if op == "reduce_scatter" else 2) * (ranks - 1) / ranks
    collective = "psum_scatter" if op == "reduce_scatter" else "psum"
    return {
        "op": "gemm" if ranks == 1 else f"gemm_{op}",
        "arch": _architecture(),
        "path": path,
        "R": ranks,
        "name": case.name,
        "m": case.m,
        "n": case.n,
        "k": case.k,
        "us": round(ours, 2),
        "us_spread": round(max(times["ours"]) - min(times["ours"]), 2),
        "tflops": round(2e-6 * case.m * case.n * case.k / ours, 1),
        "gbps": round(2e-3 * share * case.m * case.n / ours, 1),
        "ratio_to": "xla_dot" if ranks == 1 else f"xla_dot_{collective}",
        "xla_us": round(xla, 2),
        "ratio": round(xla / ours, 4),
    }


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['op']:20} {row['path']:9} R={row['R']} {row['name']:20} "
        f"m={row['m']:<6} n={row['n']:<6} k={row['k']:<6} {row['us']:9.1f} us "
        f"{row['tflops']:7.1f} TFLOP/s {row['gbps']:7.1f} GB/s   "
        f"x{row['ratio']:.3f} of {row['ratio_to']}"
    )


def _architecture() -> str:
    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    return f"sm{capability.replace('.', '')}" if capability else platform.machine()


def describe_machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    device = jax.devices()[0]
    return {
        "devices": f"{jax.device_count()} x {device.device_kind}",
        "jax": jax.__version__,
        "python": platform.python_version(),
        "platform": str(device.client.platform_version),
    }
