"""The definition of the operations in `jax.lax`: specification, oracle and fallback.

What a fused path computes is what these functions compute, up to the rounding stated in
the public docstrings. They run anywhere that `jax.lax` does, inside `jax.shard_map`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
from jax import lax

from jax_symm.group import AxisName, axis_tuple
from jax_symm.ops import _rules


def local_product(
    x: jax.Array,
    w: jax.Array,
    w_layout: _rules.WeightLayout,
    out_dtype: Any,
    precision: Any = None,
) -> jax.Array:
    """`x @ w` on one rank: accumulated in f32, rounded once to `out_dtype`."""
    contracted = ((x.ndim - 1,), (0 if w_layout == "kn" else 1,))
    return lax.dot_general(
        x,
        w,
        (contracted, ((), ())),
        precision=precision,
        preferred_element_type=out_dtype,
    )


def gemm_reduce_scatter(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName,
    *,
    scatter_dimension: int = -2,
    w_layout: _rules.WeightLayout = "kn",
    preferred_element_type: Any = None,
    precision: Any = None,
) -> jax.Array:
    """`psum_scatter(pad(x @ w))`: see `jax_symm.gemm_reduce_scatter`.

    Collective: yes, inside a compiled program.
    """
    axes = axis_tuple(axis_name)
    x, w = vary(x, axes), vary(w, axes)
    world_size = lax.axis_size(axes)
    problem = _rules.make_problem(
        "reduce_scatter",
        jax.typeof(x),
        jax.typeof(w),
        world_size,
        scatter_dimension=scatter_dimension,
        w_layout=w_layout,
        preferred_element_type=preferred_element_type,
    )
    assert problem.dimension is not None
    product = local_product(x, w, w_layout, problem.out_dtype, precision)
    padded = pad_to(product, problem.dimension, problem.shard_size * world_size)
    if world_size == 1:
        return padded
    if 0 in problem.out_shape:
        return lax.slice_in_dim(padded, 0, problem.shard_size, axis=problem.dimension)
    shard: jax.Array = lax.psum_scatter(
        padded, axes, scatter_dimension=problem.dimension, tiled=True
    )
    return shard


def gemm_all_reduce(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName,
    *,
    w_layout: _rules.WeightLayout = "kn",
    preferred_element_type: Any = None,
    precision: Any = None,
) -> jax.Array:
    """`psum(x @ w)`: see `jax_symm.gemm_all_reduce`.

    Collective: yes, inside a compiled program.
    """
    axes = axis_tuple(axis_name)
    x, w = vary(x, axes), vary(w, axes)
    problem = _rules.make_problem(
        "all_reduce",
        jax.typeof(x),
        jax.typeof(w),
        lax.axis_size(axes),
        w_layout=w_layout,
        preferred_element_type=preferred_element_type,
    )
    product = local_product(x, w, w_layout, problem.out_dtype, precision)
    total: jax.Array = lax.psum(product, axes)
    return total


def all_gather_gemm(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName,
    *,
    gather_dimension: int = -2,
    size: int | None = None,
    w_layout: _rules.WeightLayout = "kn",
    preferred_element_type: Any = None,
    precision: Any = None,
) -> jax.Array:
    """`all_gather(x) @ w`: see `jax_symm.all_gather_gemm`.

    Collective: yes, inside a compiled program.
    """
    axes = axis_tuple(axis_name)
    gathered = gather(vary(x, axes), axes, gather_dimension, size)
    out_dtype = preferred_element_type or x.dtype
    return local_product(gathered, w, w_layout, out_dtype, precision)


def gather(
    x: jax.Array, axes: tuple[str, ...], dimension: int, size: int | None
) -> jax.Array:
    """Gathers shards along `dimension` and keeps the first `size` entries."""
    dimension %= x.ndim
    if lax.axis_size(axes) > 1 and x.size:
        x = lax.all_gather(x, axes, axis=dimension, tiled=True)
    elif not x.size:
        shape = list(x.shape)
        shape[dimension] *= lax.axis_size(axes)
        x = lax.reshape(x, shape)
    if size is None or size == x.shape[dimension]:
        return x
    return lax.slice_in_dim(x, 0, size, axis=dimension)


def vary(x: jax.Array, axes: Collection[str]) -> jax.Array:
    """Marks `x` as varying over `axes`; nothing to do under `check_vma=False`."""
    missing = tuple(a for a in axes if a not in jax.typeof(x).manual_axis_type.varying)
    return lax.pcast(x, missing, to="varying") if missing else x


def pad_to(x: jax.Array, dimension: int, size: int) -> jax.Array:
    """Appends zeros along `dimension` until it has `size` entries."""
    missing = size - x.shape[dimension]
    if missing == 0:
        return x
    padding = [(0, 0, 0)] * x.ndim
    padding[dimension] = (0, missing, 0)
    return lax.pad(x, jax.numpy.zeros((), x.dtype), padding)
