"""Times the host path's sums against XLA's own collectives, on the same partials.

Eight CPU devices in one process. Each round runs the four programs one after another,
so a change of the machine's load meets all of them; the medians and their ratio are
printed. Only the communication is timed: the partial products are inputs.

    python docs/benchmarks/host_collectives.py [--m 1024] [--n 4096] [--rounds 15]
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("PJRT_NPROC", "64")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm import _native

WORLD_SIZE = 8


def host_collective(op: str, partial: jax.Array, workspace: str) -> jax.Array:
    """The custom call that follows XLA's dot on the host path."""
    m, n = partial.shape
    shard_rows = -(-m // WORLD_SIZE)
    shape = partial.shape if op == "all_reduce" else (shard_rows, n)
    call = jax.ffi.ffi_call(
        _native.target_name(op), jax.typeof(partial).update(shape=shape)
    )
    attributes = {"axis_size": WORLD_SIZE, "batch": 1, "rows": m, "n": n, "k": 1}
    attributes |= {"shard_rows": shard_rows, "call_site": 1}
    return call(
        partial,
        lax.axis_index("tp").astype(jnp.int32),
        workspace=workspace,
        **{name: np.int64(value) for name, value in attributes.items()},
    )


def xla_collective(op: str, partial: jax.Array) -> jax.Array:
    """What a program without jax_symm calls."""
    if op == "all_reduce":
        return lax.psum(partial, "tp")
    return lax.psum_scatter(partial, "tp", scatter_dimension=0, tiled=True)


def programs(mesh: jax.sharding.Mesh, workspace: str) -> dict[str, Callable]:
    """Compiled functions of the stacked partials, by name."""

    def compiled(function: Callable) -> Callable:
        return jax.jit(
            jax.shard_map(
                lambda partials: function(partials[0])[None],
                mesh=mesh,
                in_specs=P("tp"),
                out_specs=P("tp"),
                check_vma=False,
            )
        )

    table = {}
    for op in ("reduce_scatter", "all_reduce"):
        table[f"{op} host"] = compiled(
            lambda partial, op=op: host_collective(op, partial, workspace)
        )
        table[f"{op} xla"] = compiled(
            lambda partial, op=op: xla_collective(op, partial)
        )
    return table


def medians_ms(
    table: dict[str, Callable], partials: jax.Array, rounds: int
) -> dict[str, float]:
    """Median wall time of each program over interleaved rounds, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in table}
    for program in table.values():
        jax.block_until_ready(program(partials))
    for _ in range(rounds):
        for name, program in table.items():
            begin = time.perf_counter()
            jax.block_until_ready(program(partials))
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(samples) for name, samples in times.items()}


def main() -> None:
    """Prints one line per operation and dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--m", type=int, default=1024)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", WORLD_SIZE)
    mesh = jax.make_mesh((WORLD_SIZE,), ("tp",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("tp"))
    print(f"{WORLD_SIZE} CPU devices, m={args.m}, n={args.n}, {os.cpu_count()} cores")
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        shape = (WORLD_SIZE, args.m, args.n)
        values = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        partials = jax.device_put(values, sharding)
        with jax_symm.Workspace(mesh, "tp", max_m=args.m, n=args.n, dtype=dtype) as ws:
            ms = medians_ms(programs(mesh, ws.name), partials, args.rounds)
        for op in ("reduce_scatter", "all_reduce"):
            host, xla = ms[f"{op} host"], ms[f"{op} xla"]
            print(
                f"{jnp.dtype(dtype).name:9} {op:15} host {host:8.2f} ms   "
                f"xla {xla:8.2f} ms   xla/host {xla / host:6.2f}"
            )


if __name__ == "__main__":
    main()
