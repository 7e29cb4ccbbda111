"""A SwiGLU block, tensor- and sequence-parallel, at Llama-3.1-8B sizes.

Activations enter and leave sharded along the sequence. Gate and up are column-parallel
behind an all-gather, down is row-parallel: its GEMM and reduce-scatter are one call.

    python examples/tensor_parallel_mlp.py                one process, 8 CPU devices
    python examples/tensor_parallel_mlp.py --processes 2  two processes, 4 each
"""

import argparse
import functools
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("PJRT_NPROC", "64")  # many launches in flight on few cores

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm

D_MODEL, D_FF = 4096, 14336  # Llama-3.1-8B
BATCH, SEQ = 2, 128  # m = 256 tokens
WORLD_SIZE = 8
SAMPLED_ROWS = 64

SPECS = {
    "x": P(None, "tp", None),
    "w_gate": P(None, "tp"),
    "w_up": P(None, "tp"),
    "w_down": P("tp", None),
}


def gated(x, w_gate, w_up):
    """Column-parallel gate and up: [b, s/R, d] -> [b, s, d_ff/R]."""
    x = jax.lax.all_gather(x, "tp", axis=1, tiled=True)
    gate = jnp.dot(x, w_gate, preferred_element_type=jnp.float32)
    up = jnp.dot(x, w_up, preferred_element_type=jnp.float32)
    return (jax.nn.silu(gate) * up).astype(x.dtype)


def fused_block(x, w_gate, w_up, w_down, *, workspace):
    hidden = gated(x, w_gate, w_up)
    return jax_symm.gemm_reduce_scatter(
        hidden, w_down, "tp", workspace=workspace, scatter_dimension=1
    )


def xla_block(x, w_gate, w_up, w_down):
    partial = jnp.dot(gated(x, w_gate, w_up), w_down)
    return jax.lax.psum_scatter(partial, "tp", scatter_dimension=1, tiled=True)


def random_inputs(mesh):
    """The same bf16 values on every process, each device holding its shard."""
    rng = np.random.default_rng(0)
    shapes = {
        "x": (BATCH, SEQ, D_MODEL),
        "w_gate": (D_MODEL, D_FF),
        "w_up": (D_MODEL, D_FF),
        "w_down": (D_FF, D_MODEL),
    }
    inputs, values = [], {}
    for name, shape in shapes.items():
        scale = 1.0 if name == "x" else shape[0] ** -0.5
        value = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        values[name] = value.astype(jnp.bfloat16)
        sharding = NamedSharding(mesh, SPECS[name])
        inputs.append(
            jax.make_array_from_callback(
                shape, sharding, lambda i, v=values[name]: v[i]
            )
        )
    return inputs, values


def float64_rows(values, rows):
    """The block in float64 for some rows of the flattened [b * s, d] input."""
    x = values["x"].reshape(-1, D_MODEL)[rows].astype(np.float64)
    out = np.zeros((len(rows), D_MODEL))
    for start in range(0, D_FF, 2048):  # in slices, so that float64 weights stay small
        columns = slice(start, start + 2048)
        gate = x @ values["w_gate"][:, columns].astype(np.float64)
        up = x @ values["w_up"][:, columns].astype(np.float64)
        hidden = gate / (1 + np.exp(-gate)) * up
        out += hidden @ values["w_down"][columns].astype(np.float64)
    return out


def max_error(y, values):
    """Largest error over the sampled rows that this process holds."""
    rows = np.random.default_rng(1).choice(BATCH * SEQ, SAMPLED_ROWS, replace=False)
    expected = dict(zip(rows.tolist(), float64_rows(values, rows), strict=True))
    worst = 0.0
    for shard in y.addressable_shards:
        first = shard.index[1].start or 0
        block = np.asarray(shard.data).astype(np.float64)
        for b, s in np.ndindex(block.shape[:2]):
            row = b * SEQ + first + s
            if row in expected:
                worst = max(worst, np.abs(block[b, s] - expected[row]).max())
    return worst


def milliseconds(functions, inputs, rounds=5):
    """Median time of each function; the rounds are interleaved."""
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, samples in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(function(*inputs))
            samples.append((time.perf_counter() - start) * 1e3)
    return [float(np.median(samples)) for samples in times]


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)))


def down_plan(workspace):
    """Which path the down projection takes, asked with per-rank shapes."""
    hidden = jax.ShapeDtypeStruct((BATCH, SEQ, D_FF // WORLD_SIZE), jnp.bfloat16)
    weight = jax.ShapeDtypeStruct((D_FF // WORLD_SIZE, D_MODEL), jnp.bfloat16)
    return jax_symm.plan(
        "reduce_scatter", hidden, weight, "tp", workspace=workspace, scatter_dimension=1
    )


def report(plan, errors, times):
    k = D_FF // WORLD_SIZE
    shapes = f"[{BATCH}, {SEQ}, {k}] x [{k}, {D_MODEL}]"
    rows = [("down projection", "per-rank shapes", "path", "max error", "block ms")]
    for name, path, error, ms in zip(
        ("gemm_reduce_scatter", "dot + psum_scatter"),
        (plan.path, "xla"),
        errors,
        times,
        strict=True,
    ):
        rows.append((name, shapes, path, f"{error:.4f}", f"{ms:.0f}"))
    table(rows)
    print(f"path {plan.path}: {plan.reason}")
    print(f"max error: against float64, this process's part of {SAMPLED_ROWS} rows")


def run():
    mesh = jax.make_mesh((WORLD_SIZE,), ("tp",), axis_types=(AxisType.Auto,))
    inputs, values = random_inputs(mesh)

    def sharded(block):
        specs = tuple(SPECS.values())
        out = P(None, "tp", None)
        return jax.jit(jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=out))

    with jax_symm.Workspace(mesh, "tp", max_m=BATCH * SEQ, n=D_MODEL) as workspace:
        fused = sharded(functools.partial(fused_block, workspace=workspace))
        xla = sharded(xla_block)
        errors = [max_error(f(*inputs), values) for f in (fused, xla)]
        times = milliseconds([fused, xla], inputs)
        if jax.process_index() == 0:
            report(down_plan(workspace), errors, times)


def launch(processes):
    """Start this file once per process; the exit status is the worst of all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    children = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                f"--processes={processes}",
                f"--process-id={i}",
                f"--coordinator={address}",
            ]
        )
        for i in range(processes)
    ]
    return max(abs(child.wait()) for child in children)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process-id", type=int)
    parser.add_argument("--coordinator")
    args = parser.parse_args()
    if WORLD_SIZE % args.processes:
        parser.error(f"--processes must divide {WORLD_SIZE}, got {args.processes}")
    if args.processes > 1 and args.process_id is None:
        return launch(args.processes)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", WORLD_SIZE // args.processes)
    if args.processes > 1:
        jax.distributed.initialize(args.coordinator, args.processes, args.process_id)
    run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
