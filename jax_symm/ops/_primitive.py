"""The primitives behind the operations: typing, derivatives, batching.

A primitive of our own, and not `jax.ffi.ffi_call`, because the result's varying axes
differ from the operands': reduce_scatter varies over the axis, all_reduce does not. The
third operand is the caller's `axis_index`, which the runtime compares with the rank
that the workspace gave this device; where a vmap has taken the axis's name, it is
batched, and so known for what it is.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import ManualAxisType

from jax_symm._jax_compat import Primitive
from jax_symm.ops import _lowering, _rules, reference
from jax_symm.ops._surroundings import shadowed_axis

gemm_reduce_scatter_p = Primitive("gemm_reduce_scatter")
gemm_all_reduce_p = Primitive("gemm_all_reduce")
all_gather_gemm_p = Primitive("all_gather_gemm")

_FLIPPED: dict[_rules.WeightLayout, _rules.WeightLayout] = {"kn": "nk", "nk": "kn"}


# The parameters of every primitive:
#   axes, axis_size      the mesh axes, and ranks along them
#   dimension            of x, not negative: scattered or gathered; None for all_reduce
#   size                 all_gather_gemm: entries of `dimension` kept after the gather
#   w_layout, out_dtype  as in the public operations
#   path, spec           what was asked for, and the workspace's facts or None
#   precision            jax.default_matmul_precision where the user called
#   platform             of the branch of a multi-platform export; else None


# --- typing ---------------------------------------------------------------------------


def _communicating_abstract_eval(
    op: _rules.Op, x: Any, w: Any, axis_index: Any, **params: Any
) -> Any:
    problem = _lowering.problem_of(op, x, w, params)
    varying = x.manual_axis_type.varying | w.manual_axis_type.varying
    if op == "all_reduce":
        varying -= set(params["axes"])
    return x.update(
        shape=problem.out_shape,
        dtype=problem.out_dtype,
        weak_type=False,
        manual_axis_type=ManualAxisType(varying=varying),
    )


def _all_gather_gemm_abstract_eval(
    x: Any, w: Any, axis_index: Any, **params: Any
) -> Any:
    shape = list(x.shape)
    shape[params["dimension"]] = params["size"]
    shape[-1] = w.shape[1 if params["w_layout"] == "kn" else 0]
    varying = x.manual_axis_type.varying | w.manual_axis_type.varying
    return x.update(
        shape=tuple(shape),
        dtype=np.dtype(params["out_dtype"]),
        weak_type=False,
        manual_axis_type=ManualAxisType(varying=varying),
    )


# --- derivatives ----------------------------------------------------------------------


def _weight_cotangent(
    x: jax.Array, ct: jax.Array, dtype: Any, params: dict[str, Any]
) -> jax.Array:
    """`x^T @ ct` over all dimensions but the last, in the layout of the weight."""
    rows = tuple(range(x.ndim - 1))
    left, right = (x, ct) if params["w_layout"] == "kn" else (ct, x)
    return lax.dot_general(
        left,
        right,
        ((rows, rows), ((), ())),
        precision=params["precision"],
        preferred_element_type=dtype,
    )


def _reduce_scatter_transpose(
    ct: Any, x: Any, w: Any, axis_index: Any, **params: Any
) -> list[Any]:
    if type(ct) is ad.Zero:
        return [None, None, None]
    aval = (x if ad.is_undefined_primal(x) else w).aval
    ct = ct.astype(aval.dtype)
    if ad.is_undefined_primal(x):
        size = aval.shape[params["dimension"]]
        flipped = {
            **params,
            "w_layout": _FLIPPED[params["w_layout"]],
            "out_dtype": aval.dtype,
        }
        out = all_gather_gemm_p.bind(ct, w, axis_index, size=size, **flipped)
        return [out, None, None]
    rows = reference.gather(
        ct, params["axes"], params["dimension"], x.shape[params["dimension"]]
    )
    return [None, _weight_cotangent(x, rows, aval.dtype, params), None]


def _all_reduce_transpose(
    ct: Any, x: Any, w: Any, axis_index: Any, **params: Any
) -> list[Any]:
    if type(ct) is ad.Zero:
        return [None, None, None]
    aval = (x if ad.is_undefined_primal(x) else w).aval
    ct = ct.astype(aval.dtype)
    axes = params["axes"]
    if axes and not set(axes) <= aval.manual_axis_type.varying:
        # check_vma=False: every rank holds its own share of the cotangent.
        ct = lax.psum(ct, axes)
    ct = reference.vary(ct, aval.manual_axis_type.varying)
    if ad.is_undefined_primal(x):
        flipped = _FLIPPED[params["w_layout"]]
        out = reference.local_product(ct, w, flipped, aval.dtype, params["precision"])
        return [out, None, None]
    return [None, _weight_cotangent(x, ct, aval.dtype, params), None]


def _all_gather_gemm_transpose(
    ct: Any, x: Any, w: Any, axis_index: Any, **params: Any
) -> list[Any]:
    if type(ct) is ad.Zero:
        return [None, None, None]
    aval = (x if ad.is_undefined_primal(x) else w).aval
    ct = ct.astype(aval.dtype)
    size = params.pop("size")
    if ad.is_undefined_primal(x):
        flipped = {
            **params,
            "w_layout": _FLIPPED[params["w_layout"]],
            "out_dtype": aval.dtype,
        }
        out = gemm_reduce_scatter_p.bind(ct, w, axis_index, **flipped)
        return [out, None, None]
    rows = reference.gather(x, params["axes"], params["dimension"], size)
    return [None, _weight_cotangent(rows, ct, aval.dtype, params), None]


# --- batching -------------------------------------------------------------------------


def _batch(
    primitive: Primitive, args: Sequence[Any], dims: Sequence[Any], **params: Any
) -> tuple[Any, int]:
    """A batch of x is one more non-contracted dimension; a batch of w is a loop."""
    x, w, axis_index = args
    x_dim, w_dim, index_dim = dims
    if index_dim is not None:
        raise shadowed_axis(primitive.name, params["axes"])
    if w_dim is not None:
        return _loop(primitive, x, w, axis_index, x_dim, w_dim, params)
    if x_dim == x.ndim - 1:
        x, x_dim = jax.numpy.moveaxis(x, x_dim, 0), 0
    dimension = params["dimension"]
    if dimension is not None and x_dim <= dimension:
        params["dimension"] = dimension + 1
    return primitive.bind(x, w, axis_index, **params), x_dim


def _loop(
    primitive: Primitive,
    x: Any,
    w: Any,
    axis_index: Any,
    x_dim: int | None,
    w_dim: int,
    params: dict[str, Any],
) -> tuple[Any, int]:
    ws = jax.numpy.moveaxis(w, w_dim, 0)
    if x_dim is None:
        return lax.map(lambda w: primitive.bind(x, w, axis_index, **params), ws), 0
    xs = jax.numpy.moveaxis(x, x_dim, 0)
    return lax.map(lambda xw: primitive.bind(*xw, axis_index, **params), (xs, ws)), 0


# --- registration ---------------------------------------------------------------------


def _define(primitive: Primitive, abstract_eval: Any, transpose: Any) -> None:
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(abstract_eval)
    ad.defjvp(
        primitive,
        lambda dx, x, w, i, **params: primitive.bind(dx, w, i, **params),
        lambda dw, x, w, i, **params: primitive.bind(x, dw, i, **params),
        None,
    )
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive)


def _define_communicating(primitive: Primitive, op: _rules.Op, transpose: Any) -> None:
    _define(primitive, functools.partial(_communicating_abstract_eval, op), transpose)
    # Not cacheable: a cached lowering would give two calls one number.
    rule = functools.partial(_lowering.lower, primitive, op)
    mlir.register_lowering(primitive, rule, cacheable=False)


def _all_gather_gemm_reference(
    x: jax.Array, w: jax.Array, axis_index: jax.Array, **params: Any
) -> jax.Array:
    return reference.all_gather_gemm(
        x,
        w,
        params["axes"],
        gather_dimension=params["dimension"],
        size=params["size"],
        w_layout=params["w_layout"],
        preferred_element_type=params["out_dtype"],
        precision=params["precision"],
    )


_define_communicating(
    gemm_reduce_scatter_p, "reduce_scatter", _reduce_scatter_transpose
)
_define_communicating(gemm_all_reduce_p, "all_reduce", _all_reduce_transpose)
_define(all_gather_gemm_p, _all_gather_gemm_abstract_eval, _all_gather_gemm_transpose)
mlir.register_lowering(
    all_gather_gemm_p,
    mlir.lower_fun(_all_gather_gemm_reference, multiple_results=False),
)
