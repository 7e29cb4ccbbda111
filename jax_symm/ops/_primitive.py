"""The primitives behind the operations: typing, derivatives, batching, lowering.

A primitive of our own, and not `jax.ffi.ffi_call`, because the result's varying axes
differ from the operands': reduce_scatter varies over the axis, all_reduce does not. The
third operand is the caller's `axis_index`, which the runtime compares with the rank
that the workspace gave this device; where a vmap has taken the axis's name, it is
batched, and so known for what it is.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import ManualAxisType

from jax_symm import _native
from jax_symm._jax_compat import Primitive
from jax_symm.ops import _paths, _rules, reference
from jax_symm.ops._surroundings import shadowed_axis

_logger = logging.getLogger("jax_symm")

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


def _problem(op: _rules.Op, x: Any, w: Any, params: dict[str, Any]) -> _rules.Problem:
    return _rules.make_problem(
        op,
        x,
        w,
        params["axis_size"],
        scatter_dimension=-2 if params["dimension"] is None else params["dimension"],
        w_layout=params["w_layout"],
        preferred_element_type=params["out_dtype"],
    )


# --- typing ---------------------------------------------------------------------------


def _communicating_abstract_eval(
    op: _rules.Op, x: Any, w: Any, axis_index: Any, **params: Any
) -> Any:
    problem = _problem(op, x, w, params)
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


# --- lowering -------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _log_fallback(op: _rules.Op, reason: str) -> None:
    _logger.info("%s takes the xla path: %s", op, reason)


def _lower(
    primitive: Primitive,
    op: _rules.Op,
    ctx: Any,
    x: Any,
    w: Any,
    axis_index: Any,
    **params: Any,
) -> Any:
    platforms = ctx.platforms or ctx.module_context.platforms
    if len(platforms) > 1 and params["platform"] is None:
        return _lower_each(primitive, platforms, ctx, x, w, axis_index, **params)
    platform = params["platform"] or platforms[0]
    x_aval, w_aval, _ = ctx.avals_in
    problem = _problem(op, x_aval, w_aval, params)
    spec = params["spec"]
    if spec is not None and params["path"] != "xla":
        # Again: batching and transposition have made other calls of the user's.
        _rules.check_workspace(problem, params["axes"], spec)
    plan = _paths.choose(problem, platform, spec, params["path"])
    _rules.require(plan, op, spec)
    if plan.path == "host":
        return _lower_host(problem, ctx, x, w, axis_index, **params)
    if plan.path in ("peer", "peer_pull", "multicast"):
        return _lower_cuda(problem, ctx, x, w, axis_index, **params)
    if params["path"] == "auto":
        _log_fallback(op, plan.reason)
    return _lower_reference(op, ctx, x, w, **params)


def _lower_each(
    primitive: Primitive,
    platforms: Sequence[str],
    ctx: Any,
    *operands: Any,
    **params: Any,
) -> Any:
    """One branch for each platform of an export; this rule then lowers each of them."""

    def branch(platform: str) -> Callable[..., Any]:
        return lambda *operands: primitive.bind(
            *operands, **{**params, "platform": platform}
        )

    def branches(*operands: jax.Array) -> Any:
        return lax.platform_dependent(*operands, **{p: branch(p) for p in platforms})

    return mlir.lower_fun(branches, multiple_results=False)(ctx, *operands)


def _lower_reference(op: _rules.Op, ctx: Any, x: Any, w: Any, **params: Any) -> Any:
    def definition(x: jax.Array, w: jax.Array) -> jax.Array:
        common: dict[str, Any] = {
            "w_layout": params["w_layout"],
            "preferred_element_type": params["out_dtype"],
            "precision": params["precision"],
        }
        if op == "all_reduce":
            return reference.gemm_all_reduce(x, w, params["axes"], **common)
        return reference.gemm_reduce_scatter(
            x, w, params["axes"], scatter_dimension=params["dimension"], **common
        )

    inner = ctx.replace(avals_in=ctx.avals_in[:2])
    return mlir.lower_fun(definition, multiple_results=False)(inner, x, w)


def _lower_host(
    problem: _rules.Problem, ctx: Any, x: Any, w: Any, axis_index: Any, **params: Any
) -> Any:
    """XLA's dot, then one custom call that sums the partial products of the ranks."""
    x_aval, w_aval, index_aval = ctx.avals_in

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return reference.local_product(
            x, w, params["w_layout"], problem.dtype, params["precision"]
        )

    def empty(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.numpy.zeros(problem.out_shape, problem.out_dtype)

    if 0 in problem.out_shape:
        inner = ctx.replace(avals_in=[x_aval, w_aval])
        return mlir.lower_fun(empty, multiple_results=False)(inner, x, w)
    partial_aval = x_aval.update(
        shape=problem.product_shape, dtype=problem.dtype, weak_type=False
    )
    inner = ctx.replace(avals_in=[x_aval, w_aval], avals_out=[partial_aval])
    (partial,) = mlir.lower_fun(product, multiple_results=False)(inner, x, w)
    _native.register_ffi_targets()
    # Call sites are numbered anew in the compilation that follows, so a process that
    # compiles a program more often than the others numbers them alike.
    call_site = _call_site(problem, ctx)
    _native.module().restart_instances(params["spec"].name, int(call_site))
    call = jax.ffi.ffi_lowering(_native.target_name(problem.op))
    return call(
        ctx.replace(avals_in=[partial_aval, index_aval]),
        partial,
        axis_index,
        workspace=params["spec"].name,
        call_site=call_site,
        axis_size=np.int64(problem.world_size),
        batch=np.int64(problem.batch),
        rows=np.int64(problem.rows),
        shard_rows=np.int64(problem.shard_rows),
        n=np.int64(problem.n),
        k=np.int64(problem.k),
    )


def _lower_cuda(
    problem: _rules.Problem, ctx: Any, x: Any, w: Any, axis_index: Any, **params: Any
) -> Any:
    """One custom call: product, exchange and sum in a kernel."""
    _native.register_ffi_targets()
    call = jax.ffi.ffi_lowering(_native.target_name(problem.op))
    return call(
        ctx,
        x,
        w,
        axis_index,
        workspace=params["spec"].name,
        call_site=_call_site(problem, ctx),
        axis_size=np.int64(problem.world_size),
        batch=np.int64(problem.batch),
        rows=np.int64(problem.rows),
        shard_rows=np.int64(problem.shard_rows),
        n=np.int64(problem.n),
        k=np.int64(problem.k),
        w_layout=params["w_layout"],
        # "auto" leaves peer or multicast to what the ranks of the workspace agreed on.
        path=params["path"],
    )


def _call_site(problem: _rules.Problem, ctx: Any) -> np.int64:
    """A number for this place in the program: the same in all processes and runs."""
    module = ctx.module_context
    name = module.module.operation.attributes["sym_name"]
    text = f"{name}|{module.new_channel()}|{problem}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.int64(int.from_bytes(digest, "little") >> 1)


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
    rule = functools.partial(_lower, primitive, op)
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
