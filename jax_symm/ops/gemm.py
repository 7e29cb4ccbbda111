"""The public operations, and the plan that says which path a call takes."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax

from jax_symm import config
from jax_symm._jax_compat import default_matmul_precision
from jax_symm.config import Path
from jax_symm.errors import SymmAxisError, SymmError, SymmValueError
from jax_symm.group import AxisName, axis_text, axis_tuple
from jax_symm.ops import _paths, _primitive, _rules
from jax_symm.ops._rules import Op, Plan, WeightLayout, WorkspaceSpec
from jax_symm.ops._surroundings import operands, warn_about_auto_axes
from jax_symm.workspace import Workspace, current_spec


def gemm_reduce_scatter(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName,
    *,
    workspace: Workspace | None = None,
    scatter_dimension: int = -2,
    w_layout: WeightLayout = "kn",
    preferred_element_type: Any = None,
    path: Path = "auto",
) -> jax.Array:
    """Multiplies, sums over the ranks of a mesh axis, and scatters the rows.

    With R ranks along the axis, and m the scattered dimension of x, this is by
    definition `lax.psum_scatter(pad(x @ w, to R * ceil(m / R) rows), axis_name,
    scatter_dimension=..., tiled=True)`. Where R does not divide m, the padding rows are
    zero and the global result has `R * ceil(m / R)` rows; the transpose drops them.

    Call it inside `jax.shard_map`. Differentiable in x and w: a float32 cotangent is
    rounded to the operands' dtype, in which its products run; forward mode costs one
    more call for each operand that has a tangent. `jax.vmap` over x costs no copy, over
    w it loops.

    Args:
      x: Activations `[*batch, m, k_local]`, bfloat16, float16 or float32.
      w: Weight `[k_local, n]`, or `[n, k_local]` with `w_layout="nk"`, dtype of x.
      axis_name: Mesh axis, or tuple of axes, over which k is sharded.
      workspace: Symmetric memory made for this axis; None takes the one that
        `jax_symm.use_workspace` set for it, and if there is none the "xla" path.
      scatter_dimension: Dimension of x to scatter, any but the last.
      w_layout: "kn" or "nk". Neither costs a copy.
      preferred_element_type: dtype of the result: None for the operands' or float32.
      path: "auto", or a path to insist on: "host", "peer", "multicast" or "xla"; or
        "peer_pull", by which ranks fetch partials and are not sent them: for
        measurements, "auto" never takes it.

    Returns:
      `[*batch, ceil(m / R), n]`, varying over the axis. Products are accumulated in
      f32. On a fused path the partial products are rounded once to the operands' dtype,
      summed over the ranks in f32 in rank order, and rounded once.

    Raises:
      SymmAxisError: The axis is not a mesh axis of an enclosing `jax.shard_map`.
      SymmValueError: Shapes or options do not fit, or the workspace does not: another
        axis, another mesh size, not made for this operation, too small.
      SymmTypeError: dtypes differ, are weak, or are not supported.
      SymmStateError: `path` names a fused path and there is no workspace.
      SymmUnsupportedError: `path` cannot run this call here.

    Collective: yes - every rank of the axis runs it, in the same order, as any
    collective of `jax.lax`. It blocks no thread of XLA.
    """
    axes, x, w = operands("gemm_reduce_scatter", axis_name, x, w)
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
    return _communicate(problem, axes, x, w, workspace, w_layout, path)


def gemm_all_reduce(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName,
    *,
    workspace: Workspace | None = None,
    w_layout: WeightLayout = "kn",
    preferred_element_type: Any = None,
    path: Path = "auto",
) -> jax.Array:
    """Multiplies and sums over the ranks of a mesh axis.

    By definition `lax.psum(x @ w, axis_name)`. Call it inside `jax.shard_map`.
    Differentiable and batched as `gemm_reduce_scatter`.

    Args:
      x: Activations `[*batch, m, k_local]`, bfloat16, float16 or float32.
      w: Weight `[k_local, n]`, or `[n, k_local]` with `w_layout="nk"`, dtype of x.
      axis_name: Mesh axis, or tuple of axes, over which k is sharded.
      workspace: As in `gemm_reduce_scatter`.
      w_layout: "kn" or "nk". Neither costs a copy.
      preferred_element_type: dtype of the result: None for the operands' or float32.
      path: As in `gemm_reduce_scatter`.

    Returns:
      `[*batch, m, n]`, the same bits on every rank: invariant over the axis, so that
      `out_specs=P()` is accepted. Rounded as in `gemm_reduce_scatter`.

    Raises:
      SymmError: As `gemm_reduce_scatter`.

    Collective: yes, as `gemm_reduce_scatter`.
    """
    axes, x, w = operands("gemm_all_reduce", axis_name, x, w)
    problem = _rules.make_problem(
        "all_reduce",
        jax.typeof(x),
        jax.typeof(w),
        lax.axis_size(axes),
        w_layout=w_layout,
        preferred_element_type=preferred_element_type,
    )
    return _communicate(problem, axes, x, w, workspace, w_layout, path)


def all_gather_gemm(
    x: jax.Array,
    w: jax.Array,
    axis_name: AxisName,
    *,
    workspace: Workspace | None = None,
    gather_dimension: int = -2,
    size: int | None = None,
    w_layout: WeightLayout = "kn",
    preferred_element_type: Any = None,
    path: Path = "auto",
) -> jax.Array:
    """Gathers the rows over the ranks of a mesh axis and multiplies.

    By definition `lax.all_gather(x, axis_name, axis=gather_dimension,
    tiled=True)[:size] @ w`. It runs as that; what it adds is the transpose, which is
    `gemm_reduce_scatter` with this workspace, as its own is that of
    `gemm_reduce_scatter`.

    Args:
      x: Activations `[*batch, m_local, k]`, bfloat16, float16 or float32.
      w: Weight `[k, n_local]`, or `[n_local, k]` with `w_layout="nk"`, dtype of x.
      axis_name: Mesh axis, or tuple of axes, over which the rows are sharded.
      workspace: Used by the transpose: as in `gemm_reduce_scatter`.
      gather_dimension: Dimension of x to gather, any but the last.
      size: Rows kept after the gather: None for all, `R * m_local`. It drops the
        padding rows of `gemm_reduce_scatter` where R does not divide m.
      w_layout: "kn" or "nk".
      preferred_element_type: dtype of the result: None for the operands' or float32.
      path: Of the transpose.

    Returns:
      `[*batch, size, n_local]`, accumulated in f32 and rounded once; varying over the
      axis.

    Raises:
      SymmError: As `gemm_reduce_scatter`.

    Collective: yes, as `gemm_reduce_scatter`.
    """
    axes, x, w = operands("all_gather_gemm", axis_name, x, w)
    world_size = lax.axis_size(axes)
    dimension, size = _gathered(x, gather_dimension, size, world_size)
    spec, path = _workspace(axes, workspace, path)
    gathered = jax.ShapeDtypeStruct(
        (*x.shape[:dimension], size, *x.shape[dimension + 1 :]), x.dtype
    )
    forward = _rules.make_problem(
        "reduce_scatter",
        gathered,
        jax.typeof(w),
        world_size,
        scatter_dimension=dimension,
        w_layout=w_layout,
        preferred_element_type=preferred_element_type,
    )
    if spec is not None and path != "xla":
        warn_about_auto_axes("the transpose of all_gather_gemm", stacklevel=2)
    with jax.named_scope("all_gather_gemm"):
        out: jax.Array = _primitive.all_gather_gemm_p.bind(
            x,
            w,
            lax.axis_index(axes),
            axes=axes,
            axis_size=world_size,
            dimension=dimension,
            size=size,
            w_layout=w_layout,
            out_dtype=forward.out_dtype,
            path=path,
            spec=spec,
            precision=default_matmul_precision(),
            platform=None,
        )
    return out


def plan(
    op: Op,
    x: Any,
    w: Any,
    axis_name: AxisName,
    *,
    workspace: Workspace | None = None,
    scatter_dimension: int = -2,
    w_layout: WeightLayout = "kn",
    preferred_element_type: Any = None,
    path: Path = "auto",
) -> Plan:
    """Says which path a call takes, and why, without tracing or running it.

    Args:
      op: "reduce_scatter" or "all_reduce".
      x: An array or `jax.ShapeDtypeStruct` with the shape of one rank's operand.
      w: The same.
      axis_name: As in the operation.
      workspace: As in the operation.
      scatter_dimension: As in the operation; ignored by "all_reduce".
      w_layout: As in the operation.
      preferred_element_type: As in the operation.
      path: As in the operation. A path that cannot run gives `can_run=False`.

    Returns:
      The plan.

    Raises:
      SymmError: The call is wrong, as the operation would raise.

    Collective: no.
    """
    axes = axis_tuple(axis_name)
    spec, path = _workspace(axes, workspace, path)
    problem = _rules.make_problem(
        op,
        x,
        w,
        _world_size(axes, spec),
        scatter_dimension=scatter_dimension,
        w_layout=w_layout,
        preferred_element_type=preferred_element_type,
    )
    if spec is not None and path != "xla":
        _rules.check_workspace(problem, axes, spec)
    platform = spec.platform if spec is not None else jax.default_backend()
    return _paths.choose(problem, platform, spec, path)


def can_run(op: Op, x: Any, w: Any, axis_name: AxisName, **options: Any) -> bool:
    """Whether `plan(...)` finds that the path asked for can run the call."""
    try:
        return plan(op, x, w, axis_name, **options).can_run
    except SymmError:
        return False


def should_run(op: Op, x: Any, w: Any, axis_name: AxisName, **options: Any) -> bool:
    """Whether `plan(...)` finds that `path="auto"` takes a fused path."""
    return plan(op, x, w, axis_name, **options).should_run


def explain(op: Op, x: Any, w: Any, axis_name: AxisName, **options: Any) -> str:
    """The path of `plan(...)` and the reason for it, as one line of text."""
    chosen = plan(op, x, w, axis_name, **options)
    verb = "takes" if chosen.can_run else "cannot take"
    return f"{op} {verb} the {chosen.path} path: {chosen.reason}"


def _communicate(
    problem: _rules.Problem,
    axes: tuple[str, ...],
    x: jax.Array,
    w: jax.Array,
    workspace: Workspace | None,
    w_layout: WeightLayout,
    path: Path,
) -> jax.Array:
    spec, path = _workspace(axes, workspace, path)
    platform = spec.platform if spec is not None else jax.default_backend()
    if spec is not None and path != "xla":
        _rules.check_workspace(problem, axes, spec)
        warn_about_auto_axes(problem.op, stacklevel=3)
    chosen = _paths.choose(problem, platform, spec, path)
    _rules.require(chosen, problem.op, spec)
    primitive = (
        _primitive.gemm_reduce_scatter_p
        if problem.op == "reduce_scatter"
        else _primitive.gemm_all_reduce_p
    )
    with jax.named_scope(primitive.name):
        out: jax.Array = primitive.bind(
            x,
            w,
            lax.axis_index(axes),
            axes=axes,
            axis_size=problem.world_size,
            dimension=problem.dimension,
            w_layout=w_layout,
            out_dtype=problem.out_dtype,
            path=path,
            spec=spec,
            precision=default_matmul_precision(),
            platform=None,
        )
    return out


def _gathered(
    x: jax.Array, gather_dimension: int, size: int | None, world_size: int
) -> tuple[int, int]:
    dimension = gather_dimension + x.ndim if gather_dimension < 0 else gather_dimension
    if not 0 <= dimension < x.ndim - 1:
        raise SymmValueError(
            f"all_gather_gemm: gather_dimension: got {gather_dimension} for x of shape "
            f"{x.shape}, expected a dimension other than the contracted last one"
        )
    shard = x.shape[dimension]
    if size is None:
        return dimension, shard * world_size
    if _rules.ceil_div(size, world_size) != shard:
        raise SymmValueError(
            f"all_gather_gemm: size: got {size}, expected one whose shard "
            f"ceil(size / {world_size}) is the {shard} rows of x {x.shape}"
        )
    return dimension, size


def _workspace(
    axes: tuple[str, ...], workspace: Workspace | None, path: Path
) -> tuple[WorkspaceSpec | None, Path]:
    if workspace is None:
        spec = current_spec(axes)
    elif isinstance(workspace, Workspace):
        spec = workspace.spec
    else:
        raise SymmValueError(
            f"workspace: got {type(workspace).__name__}, expected a jax_symm.Workspace"
        )
    if path == "auto" and spec is not None:
        path = config.settings().path
    return spec, path


def _world_size(axes: tuple[str, ...], spec: WorkspaceSpec | None) -> int:
    if spec is not None:
        return spec.world_size
    mesh = jax.sharding.get_abstract_mesh()
    missing = [a for a in axes if a not in mesh.axis_names]
    if missing:
        raise SymmAxisError(
            f"plan: axis {axis_text(axes)} has no size here: pass workspace=, or call "
            "it under jax.set_mesh or inside jax.shard_map"
        )
    return int(functools.reduce(lambda size, a: size * mesh.shape[a], axes, 1))
