"""Meshes, data and readers of compiled HLO that the transformation tests share."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm.ops import reference

WORLD_SIZE = 4
X_SPEC, W_SPEC = P(None, "tp"), P("tp", None)
RS_SPEC, AR_SPEC = P("tp", None), P(None, None)

OURS = {
    "gemm_reduce_scatter": jax_symm.gemm_reduce_scatter,
    "gemm_all_reduce": jax_symm.gemm_all_reduce,
}
DEFINITION = {
    "gemm_reduce_scatter": reference.gemm_reduce_scatter,
    "gemm_all_reduce": reference.gemm_all_reduce,
}
OUT_SPEC = {"gemm_reduce_scatter": RS_SPEC, "gemm_all_reduce": AR_SPEC}
OPS = sorted(OURS)


def mesh_of(shape=(WORLD_SIZE,), names=("tp",), axis_type=AxisType.Auto, devices=None):
    count = int(np.prod(shape))
    devices = jax.devices()[:count] if devices is None else devices
    grid = np.array(devices).reshape(shape)
    return Mesh(grid, names, axis_types=(axis_type,) * len(names))


def integers(seed, shape, dtype=jnp.float32):
    """Small integers: products and sums of a few hundred of them are exact in float32."""
    values = np.random.default_rng(seed).integers(-2, 3, shape)
    # Converted by numpy: JAX would compile that for each shape.
    return jax.device_put(values.astype(dtype))


def operands():
    """x and w of most tests."""
    return integers(0, (16, 32)), integers(1, (32, 24))


def sharded(body, mesh, in_specs=(X_SPEC, W_SPEC), out_specs=RS_SPEC, **options):
    return jax.shard_map(
        body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options
    )


def host_calls(workspace):
    """Calls that ran on the host path, over all ranks of this process."""
    return sum(workspace.calls().get("host", {}).values())


def compiled_text(function, *args):
    return jax.jit(function).lower(*args).compile().as_text()


COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)


def hlo_counts(text):
    """How often each collective and each call of ours appears in compiled HLO."""
    counts = Counter()
    for name in COLLECTIVES:
        counts[name] = len(re.findall(rf"= \S+ {name}(?:-start)?\(", text))
    for target in re.findall(r'custom_call_target="(jax_symm\.[^"]+)"', text):
        counts[target] += 1
    return +counts


RS_TARGET = "jax_symm.gemm_reduce_scatter.v1"
AR_TARGET = "jax_symm.gemm_all_reduce.v1"
