"""How each operation is compiled: a custom call for the host or a kernel, or lax.

The choice of the path is `_paths.choose`; here each path becomes operations of MLIR.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from jax_symm import _native
from jax_symm._jax_compat import Primitive
from jax_symm.ops import _paths, _rules, reference

_logger = logging.getLogger("jax_symm")
_marked_modules = itertools.count()
_MARK = "jax_symm.job"


def problem_of(op: _rules.Op, x: Any, w: Any, params: dict[str, Any]) -> _rules.Problem:
    return _rules.make_problem(
        op,
        x,
        w,
        params["axis_size"],
        scatter_dimension=-2 if params["dimension"] is None else params["dimension"],
        w_layout=params["w_layout"],
        preferred_element_type=params["out_dtype"],
    )


@functools.lru_cache(maxsize=256)
def _log_fallback(op: _rules.Op, reason: str) -> None:
    _logger.info("%s takes the xla path: %s", op, reason)


def lower(
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
    problem = problem_of(op, x_aval, w_aval, params)
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
    if params["spec"].job is not None:
        _keep_from_the_cache(ctx, params["spec"].job)
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
        **_sizes(problem),
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
        **_sizes(problem),
        w_layout=params["w_layout"],
        # "auto" leaves peer or multicast to what the ranks of the workspace agreed on.
        path=params["path"],
    )


def _sizes(problem: _rules.Problem) -> dict[str, np.int64]:
    """The attributes that every target takes."""
    return {
        "axis_size": np.int64(problem.world_size),
        "batch": np.int64(problem.batch),
        "rows": np.int64(problem.rows),
        "shard_rows": np.int64(problem.shard_rows),
        "n": np.int64(problem.n),
        "k": np.int64(problem.k),
    }


def _call_site(problem: _rules.Problem, ctx: Any) -> np.int64:
    """A number for this place in the program: the same in all processes and runs."""
    module = ctx.module_context
    name = module.module.operation.attributes["sym_name"]
    text = f"{name}|{module.new_channel()}|{problem}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.int64(int.from_bytes(digest, "little") >> 1)


def _keep_from_the_cache(ctx: Any, job: int) -> None:
    """Gives the module a text that JAX's persistent cache has not seen.

    That cache keeps the executables of process 0 alone, and one that was loaded counts
    its launches from another number than one that was compiled. The attribute ends
    with MLIR: compiled, the program is the same in every process.
    """
    attributes = ctx.module_context.module.operation.attributes
    if _MARK not in attributes:
        attributes[_MARK] = mlir.ir_attribute(f"{job:x}.{next(_marked_modules)}")
