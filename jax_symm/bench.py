"""Times the operations against what XLA does with the same inputs.

The programs of a shape take turns over several sets of inputs, more than a cache holds,
so that a change of clocks or load meets them all; each call waits for the one before,
on the clock of the host. A row has medians and quartiles.

On several devices the operations run against XLA's product and collective. On one GPU
its product is timed alone, and then ranks that share it against XLA's products of all
ranks and one reduction, whose own speed is a row as well.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from jax_symm import _backends, _bench_plot
from jax_symm._bench_programs import (
    Case,
    Program,
    Times,
    compile_program,
    fused_program,
    inputs_of_ranks,
    interleave,
    make_inputs,
    unfused_programs,
)
from jax_symm._shared_gpu import SharedGpu
from jax_symm.ops import _crossover
from jax_symm.ops._rules import Op, Plan
from jax_symm.ops.gemm import plan
from jax_symm.workspace import Workspace

SUMMARY = "time the operations against XLA's own, as JSON rows"

# Row-parallel layers by name: n and k of the whole layer (public model configurations).
LAYERS: dict[str, tuple[int, int]] = {
    "llama-3.1-8b-o-proj": (4096, 4096),
    "llama-3.1-8b-down": (4096, 14336),
    "llama-3.1-70b-o-proj": (8192, 8192),
    "llama-3.1-70b-down": (8192, 28672),
    "llama-3.1-405b-down": (16384, 53248),
    "qwen3-32b-o-proj": (5120, 8192),
    "qwen3-32b-down": (5120, 25600),
    "deepseek-v3-o-proj": (7168, 16384),
    "deepseek-v3-down": (7168, 18432),
    "kimi-k3-o-proj": (7168, 12288),
    "kimi-k3-down": (7168, 33792),
    "gemma-3-27b-down": (5376, 21504),
    "gpt-oss-120b-o-proj": (2880, 4096),
}
_DEFAULT_LAYERS = (
    "llama-3.1-8b-down",
    "llama-3.1-70b-down",
    "kimi-k3-o-proj",
    "deepseek-v3-o-proj",
    "qwen3-32b-down",
)
_OPS: tuple[Op, ...] = ("reduce_scatter", "all_reduce")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the subcommand."""
    parser.description = __doc__
    parser.add_argument(
        "--layers", nargs="*", default=list(_DEFAULT_LAYERS), choices=LAYERS
    )
    parser.add_argument(
        "--shape", type=int, nargs=2, metavar=("N", "K"), help="a layer of one's own"
    )
    parser.add_argument("--m", type=int, nargs="*", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--tp", type=int, default=0, help="split of k; 0: the devices")
    parser.add_argument("--w-layout", choices=("kn", "nk"), default="kn")
    parser.add_argument(
        "--paths", nargs="*", default=["auto"], help="as path= of the operations"
    )
    parser.add_argument(
        "--shared-ranks",
        type=int,
        nargs="*",
        default=[],
        help="also time this many ranks that share one GPU",
    )
    parser.add_argument("--sm-margin", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="JSON file; default: standard output")
    parser.add_argument("--plot", type=Path, help="image file (needs matplotlib)")
    parser.add_argument(
        "--rows", type=Path, help="a JSON file to take rows from; nothing is timed"
    )
    parser.add_argument(
        "--crossover",
        type=Path,
        help="file for the table that `auto` follows, from rows of several GPUs",
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes rows, a plot and a table, as asked for; returns the exit status."""
    if arguments.rows:
        document = json.loads(arguments.rows.read_text())
    else:
        document = _time_everything(arguments)
    if arguments.plot:
        _bench_plot.draw(document, arguments.plot)
    if arguments.crossover:
        layers = _crossover.from_rows(document["rows"])
        source = f"{document['machine']['devices']}: {document['command']}"
        table = {"source": source, "layers": layers}
        arguments.crossover.write_text(json.dumps(table, indent=1) + "\n")
    return 0


def _time_everything(arguments: argparse.Namespace) -> dict[str, Any]:
    """Times every case; writes the rows case by case, so that a cut leaves them."""
    rows: list[dict[str, Any]] = []
    document = {
        "machine": describe_machine(),
        "command": " ".join(["python -m jax_symm", *sys.argv[1:]]),
        "rows": rows,
    }
    for measured in _measure(arguments):
        rows += measured
        for row in measured:
            _report(row)
        if arguments.out:
            arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    if not arguments.out:
        print(json.dumps(document, indent=1))
    return document


def _measure(arguments: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """The rows, case by case."""
    devices = jax.devices()
    mesh = Mesh(np.asarray(devices, dtype=object), ("tp",), axis_types=(AxisType.Auto,))
    for case in _cases(arguments, len(devices)):
        yield time_case(mesh, case, arguments)
    on_gpu = devices[0].platform == "gpu"
    backend = _backends.backend("gpu") if on_gpu else None
    for ranks in arguments.shared_ranks:
        for case in _cases(arguments, ranks):
            yield time_shared(devices[0], ranks, case, arguments, backend)


def _cases(arguments: argparse.Namespace, ranks: int) -> list[Case]:
    split = arguments.tp or ranks
    layers = {name: LAYERS[name] for name in arguments.layers}
    if arguments.shape:
        layers = {"custom": tuple(arguments.shape)}
    return [
        Case(name, m, n, k // split)
        for name, (n, k) in layers.items()
        for m in arguments.m
    ]


def time_case(
    mesh: Mesh, case: Case, arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """The rows of one shape: one for each operation and path, or the product alone."""
    ranks = mesh.size
    operands = make_inputs(mesh, case, arguments.w_layout)
    rows = []
    with Workspace(
        mesh,
        "tp",
        max_m=case.m,
        n=case.n,
        multicast="never",
        sm_margin=arguments.sm_margin,
    ) as workspace:
        for op in _OPS if ranks > 1 else _OPS[:1]:
            plans = [
                _plan(path, op, case, workspace, arguments.w_layout)
                for path in arguments.paths
            ]
            sides: dict[str, tuple[Workspace | None, str]] = {
                **{plan.path: (workspace, plan.path) for plan in plans},
                "xla": (None, "xla"),
                "products": (None, "products"),
            }
            compiled = {
                name: compile_program(mesh, op, arguments.w_layout, *side)
                for name, side in sides.items()
            }
            programs = {
                name: Program(functools.partial(program, *operands))
                for name, program in compiled.items()
            }
            times = interleave(programs, arguments.rounds, len(operands[0]))
            for plan in plans:
                link_us = float((plan.config or {}).get("link_us", 0.0))
                rows.append(make_row(op, case, ranks, plan.path, times, link_us))
    return rows


def _plan(path: Any, op: Op, case: Case, workspace: Workspace, w_layout: Any) -> Plan:
    """The plan of the path to time: never XLA's, also where `auto` would take it."""
    find = functools.partial(
        plan,
        op,
        jax.ShapeDtypeStruct((case.m, case.k), jnp.bfloat16),
        jax.ShapeDtypeStruct(
            (case.k, case.n) if w_layout == "kn" else (case.n, case.k), jnp.bfloat16
        ),
        "tp",
        workspace=workspace,
        w_layout=w_layout,
    )
    found = find(path=path)
    return find(path="peer") if found.path == "xla" else found


def time_shared(
    device: Any,
    ranks: int,
    case: Case,
    arguments: argparse.Namespace,
    backend: Any,
    **options: Any,
) -> list[dict[str, Any]]:
    """Rows of ranks that share a GPU, and of the reduction that they do without.

    Args:
      device: The GPU, or any device to time the reduction alone.
      ranks: How many.
      case: The shape.
      arguments: Of the subcommand.
      backend: Memory of GPUs; None to time the reduction alone.
      **options: Of `SharedGpu`.
    """
    xs, ws = inputs_of_ranks(device, ranks, case, arguments.w_layout)
    unfused = functools.partial(
        unfused_programs, xs, ws, ranks, case, arguments.w_layout
    )
    if backend is None:
        times = interleave(unfused(), arguments.rounds, len(xs))
        return [reduction_row(case, ranks, times)]
    rows = []
    with SharedGpu(ranks, device, backend, max_m=case.m, n=case.n, **options) as shared:
        for op in _OPS:
            fused = {
                path: fused_program(
                    shared, op, case, xs, ws, arguments.w_layout, reducer
                )
                for path, reducer in (("peer", "push"), ("peer_pull", "pull"))
            }
            results = ranks if op == "all_reduce" else 1
            programs = {**fused, **unfused(results=results)}
            times = interleave(programs, arguments.rounds, len(xs))
            # What no rank can do without: partials written once and read once, results
            # written. The copy reads and writes ranks + 1 times m x n elements.
            moved = (2 * ranks + results) / (ranks + 1)
            bytes_us = statistics.median(times["copy"]) * moved
            rows += [
                make_row(op, case, ranks, path, times, bytes_us, shared=True)
                for path in fused
            ]
    return [*rows, reduction_row(case, ranks, times)]


def make_row(
    op: str,
    case: Case,
    ranks: int,
    path: str,
    times: Times,
    bytes_us: float = 0.0,
    *,
    shared: bool = False,
) -> dict[str, Any]:
    """One row of the document.

    Args:
      op: The operation.
      case: The shape.
      ranks: How many.
      path: Whose times are ours; "xla" has the other side's, "products" the products'.
      times: Of `interleave`.
      bytes_us: Least time for the bytes that must move, in microseconds.
      shared: Whether the ranks share a GPU; then the products are those of all ranks.
    """
    ours, xla = (statistics.median(times[name]) for name in (path, "xla"))
    floor = max(statistics.median(times["products"]), bytes_us)
    share = (1 if op == "reduce_scatter" else 2) * (ranks - 1) / ranks
    products = ranks if shared else 1
    return {
        **_heading("gemm" if ranks == 1 else f"gemm_{op}", case, ranks, path),
        **_spread(times[path]),
        "tflops": _digits(2e-6 * products * case.m * case.n * case.k / ours),
        "gbps": _digits(2e-3 * share * case.m * case.n / ours),
        "ratio_to": _other_side(op, ranks, shared),
        "xla_us": round(xla, 2),
        "ratio": round(xla / ours, 4),
        "floor_us": round(floor, 2),
        "percent_of_floor": round(100 * floor / ours, 1),
    }


def reduction_row(case: Case, ranks: int, times: Times) -> dict[str, Any]:
    """The row of XLA's reduction of the partials, against a copy of as many bytes."""
    reduction, copy = (statistics.median(times[n]) for n in ("reduction", "copy"))
    return {
        **_heading("reduction", case, ranks, "xla"),
        **_spread(times["reduction"]),
        "tflops": 0.0,
        "gbps": _digits(2e-3 * (ranks + 1) * case.m * case.n / reduction),
        "ratio_to": "copy",
        "xla_us": round(copy, 2),
        "ratio": round(copy / reduction, 4),
        "floor_us": round(copy, 2),
        "percent_of_floor": round(100 * copy / reduction, 1),
    }


def _other_side(op: str, ranks: int, shared: bool) -> str:
    if shared:
        return "xla_gemm_plus_reduction"
    if ranks == 1:
        return "xla_dot"
    return "xla_dot_psum_scatter" if op == "reduce_scatter" else "xla_dot_psum"


def _heading(op: str, case: Case, ranks: int, path: str) -> dict[str, Any]:
    return {
        "op": op,
        "arch": _architecture(),
        "path": path,
        "R": ranks,
        "name": case.name,
        "m": case.m,
        "n": case.n,
        "k": case.k,
    }


def _spread(times: Sequence[float]) -> dict[str, Any]:
    low, _, high = statistics.quantiles([*times, *times], n=4)
    return {
        "us": round(statistics.median(times), 2),
        "us_spread": round(max(times) - min(times), 2),
        "us_quartiles": [round(low, 2), round(high, 2)],
    }


def _digits(value: float) -> float:
    """Four of them: small machines count as well as large ones."""
    return float(f"{value:.4g}")


def _report(row: dict[str, Any]) -> None:
    print(
        f"{row['op']:20} {row['path']:9} R={row['R']} {row['name']:20} "
        f"m={row['m']:<6} n={row['n']:<6} k={row['k']:<6} {row['us']:9.1f} us "
        f"{row['tflops']:7.1f} TFLOP/s {row['gbps']:7.1f} GB/s "
        f"{row['percent_of_floor']:5.1f} % of floor   "
        f"x{row['ratio']:.3f} of {row['ratio_to']}",
        file=sys.stderr,
        flush=True,
    )


def _architecture() -> str:
    device = jax.devices()[0]
    capability = str(getattr(device, "compute_capability", ""))
    return f"sm{capability.replace('.', '')}" if capability else str(device.platform)


def describe_machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    device = jax.devices()[0]
    return {
        "devices": f"{jax.device_count()} x {device.device_kind}",
        "jax": jax.__version__,
        "python": platform.python_version(),
        "platform": str(device.client.platform_version),
    }
