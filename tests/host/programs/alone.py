"""Programs of one process that need a setting of their own."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from jax import lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jax_symm


def mesh_of_all():
    return Mesh(np.asarray(jax.devices()), ("tp",), axis_types=(AxisType.Auto,))


def program(mesh, body, *out_specs):
    return jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=out_specs or P(),
            check_vma=False,
        )
    )


def few_cores(note, iterations):
    """Ours mixed with XLA's own, again and again."""
    mesh = mesh_of_all()
    world_size = mesh.devices.size
    x, w = oracle.rank_bits(world_size, 2 * world_size, 8, jnp.float32)
    with jax_symm.Workspace(
        mesh, "tp", max_m=2 * world_size, n=8, dtype=jnp.float32, timeout_s=60
    ) as workspace:

        def body(x, w):
            a = jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=workspace)
            b = jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace)
            return a, b, lax.psum(x @ w, "tp")

        f = program(mesh, body, P("tp"), P(), P())
        for _ in range(iterations):
            for y in f(x, w):
                np.testing.assert_array_equal(y, 2.0**world_size - 1)
        assert oracle.host_calls(workspace) == 2 * world_size * iterations


def all_ranks(note, _):
    mesh = mesh_of_all()
    world_size = mesh.devices.size
    x, w = oracle.rank_bits(world_size, 2 * world_size, 40, jnp.float32)
    for op in ("reduce_scatter", "all_reduce"):
        with jax_symm.Workspace(
            mesh, "tp", max_m=2 * world_size, n=40, dtype=jnp.float32, timeout_s=60
        ) as workspace:
            y = oracle.run(op, x, w, mesh, "tp", workspace, path="host")
            np.testing.assert_array_equal(y, 2.0**world_size - 1)


def diverge(note, argument):
    """C24: the ranks take different branches around one of our calls."""
    which, timeout_s = argument
    mesh = mesh_of_all()
    x, w = oracle.rank_bits(4, 8, 8, oracle.fused_dtype(), k_local=8)
    workspace = jax_symm.Workspace(
        mesh, "tp", max_m=8, n=8, dtype=jnp.float32, timeout_s=timeout_s
    )

    def call(x, w):
        return jax_symm.gemm_all_reduce(
            x, w, "tp", workspace=workspace, path=oracle.fused_path()
        )

    def branch(x, w):
        return lax.cond(lax.axis_index("tp") == 0, lambda: x @ w, lambda: call(x, w))

    def trips(x, w):
        rank = lax.axis_index("tp")
        return lax.fori_loop(
            0, rank + 1, lambda i, y: y + call(x + i.astype(x.dtype), w), x @ w
        )

    def failing(x, w):
        def check(rank):
            if rank == 2:
                raise ValueError("the user's own check failed")
            return np.float32(0)

        rank = lax.axis_index("tp")
        zero = jax.pure_callback(check, jax.ShapeDtypeStruct((), np.float32), rank)
        return call(x + zero.astype(x.dtype), w)

    body = {"branch": branch, "trips": trips, "failing": failing}[which]
    f = program(mesh, body).lower(x, w).compile()
    start = time.monotonic()
    try:
        jax.block_until_ready(f(x, w))
        workspace.check()
        note("error", None)
    except (RuntimeError, jax_symm.errors.SymmError) as error:
        note("error", str(error))
    note("seconds", time.monotonic() - start)
    try:
        workspace.check()
        note("check", None)
    except Exception as error:
        note("check", [type(error).__name__, str(error)])
    workspace.close()
    with jax_symm.Workspace(
        mesh, "tp", max_m=8, n=8, dtype=jnp.float32, timeout_s=60
    ) as again:
        y = oracle.run("all_reduce", x, w, mesh, "tp", again, path=oracle.fused_path())
        note("again", bool((y == 15).all()))
