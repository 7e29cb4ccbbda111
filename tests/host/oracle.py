"""What the operations must give, in numpy float64, and how the tests run them.

Operands are numpy arrays: one made by JAX compiles a program for each new shape.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm


def spec_of_x(ndim, axis):
    return P(*([None] * (ndim - 1)), axis)


def spec_of_w(axis, w_layout="kn"):
    return P(axis, None) if w_layout == "kn" else P(None, axis)


def run(
    op, x, w, mesh, axis, workspace, *, check_vma=True, path="auto", jit=True, **options
):
    """`op` on global x [*batch, m, k] and w, k sharded over `axis`; a numpy array."""
    dimension = options.get("scatter_dimension", -2) % x.ndim
    in_specs = (
        spec_of_x(x.ndim, axis),
        spec_of_w(axis, options.get("w_layout", "kn")),
    )
    out = [None] * x.ndim
    if op == "reduce_scatter":
        out[dimension] = axis
    call = (
        jax_symm.gemm_reduce_scatter
        if op == "reduce_scatter"
        else jax_symm.gemm_all_reduce
    )
    body = jax.shard_map(
        lambda x, w: call(x, w, axis, workspace=workspace, path=path, **options),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=P(*out),
        check_vma=check_vma,
    )
    run_ = jax.jit(body) if jit else body
    args = [put(a, mesh, s) for a, s in zip((x, w), in_specs, strict=True)]
    # A replicated result is read from one device; the calls of all are to be counted.
    return np.asarray(jax.block_until_ready(run_(*args)))


def put(array, mesh, spec):
    return jax.device_put(array, NamedSharding(mesh, spec))


def expected(op, x, w, world_size, *, scatter_dimension=-2, w_layout="kn", **_):
    """The global result in float64, padded rows of zeros included."""
    w64 = np.asarray(w, np.float64)
    product = np.asarray(x, np.float64) @ (w64 if w_layout == "kn" else w64.T)
    if op == "all_reduce":
        return product
    dimension = scatter_dimension % x.ndim
    m = x.shape[dimension]
    padding = [(0, 0)] * x.ndim
    padding[dimension] = (0, -(-m // world_size) * world_size - m)
    return np.pad(product, padding)


def capacity(op, x, w, *, scatter_dimension=-2, w_layout="kn", **_):
    """Arguments of a workspace that is large enough for this call, in any dtype."""
    n = w.shape[1] if w_layout == "kn" else w.shape[0]
    dimension = scatter_dimension % x.ndim
    padded = [d + 16 if i == dimension else d for i, d in enumerate(x.shape[:-1])]
    return {"max_m": int(np.prod(padded)), "n": max(n, 1), "dtype": jnp.float32}


def fused_path():
    """The fused path on the devices that a program of several processes runs on."""
    return "peer" if jax.default_backend() == "gpu" else "host"


def fused_dtype():
    """A dtype that every fused path takes; small integers are exact in it."""
    return jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32


def sm_margin():
    """What each of several processes on one GPU leaves to the others."""
    ranks = int(os.environ.get("TEST_RANKS_PER_GPU", "1"))
    if ranks == 1:
        return 0
    multiprocessors = jax.local_devices()[0].core_count
    return multiprocessors - multiprocessors // ranks


def takes_turns():
    """Whether processes share a GPU by time slices: then every signal waits for one."""
    shared = os.environ.get("TEST_RANKS_PER_GPU", "1") != "1"
    return shared and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def fused_calls(workspace):
    """How many calls this process's ranks began on the fused path."""
    jax.effects_barrier()
    return sum(workspace.calls().get(fused_path(), {}).values())


def host_calls(workspace):
    return sum(workspace.calls().get("host", {}).values())


def small_integers(rng, shape, dtype, bound=1):
    """Integers whose products sum without rounding in any of the dtypes."""
    return rng.integers(-bound, bound + 1, shape).astype(dtype)


def rank_bits(world_size, m, n, dtype, k_local=4):
    """x and w whose product at rank r is 2**r everywhere: a missing rank shows."""
    x = np.zeros((m, world_size * k_local), np.float32)
    x[:, ::k_local] = 1
    bits = 2.0 ** np.arange(world_size)
    w = np.repeat(bits, k_local)[:, None] * np.ones((1, n))
    return x.astype(dtype), w.astype(dtype)
