"""What a call means and which path it takes: shapes, dtypes, capacity, choice. Pure.

Nothing here looks at a device or traces: every process that sees the same shapes and
the same workspace facts comes to the same answer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np

from jax_symm.config import Path
from jax_symm.errors import (
    SymmStateError,
    SymmTypeError,
    SymmUnsupportedError,
    SymmValueError,
)
from jax_symm.group import axis_text

Op = Literal["reduce_scatter", "all_reduce"]
WeightLayout = Literal["kn", "nk"]
Shape = tuple[int, ...]

OPS: tuple[Op, ...] = get_args(Op)
PATHS: tuple[Path, ...] = get_args(Path)

GPU_PLATFORMS = ("gpu", "cuda")

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOAT32 = np.dtype(np.float32)
DTYPES = (_BFLOAT16, np.dtype(np.float16), _FLOAT32)
_DTYPE_TEXT = "bfloat16, float16 or float32"


@dataclasses.dataclass(frozen=True)
class WorkspaceSpec:
    """The facts of a workspace that compiled code may depend on.

    Equal on every process. It holds no memory, so a compiled function that refers to it
    keeps nothing alive, and a workspace opened again with the same facts needs no
    recompilation.

    Attributes:
      name: The key by which a running program finds the workspace.
      axes: Mesh axes of the groups.
      device_ids: `device.id` per group and rank.
      platform: Platform of the devices, "cpu" or "gpu".
      capability: Compute capability of the devices, for example "9.0"; "" on CPU.
      capacity_bytes: Largest padded product `batch * m * n` that fits, in bytes.
      ops: The operations that the workspace was made for.
      no_multicast: Per group, why it has no multicast; None where it has.
      sm_margin: Multiprocessors of each GPU that the kernels leave free.
      job: A number of this job on CPU devices of several processes, else None. Not
        one of the facts that are compared.
    """

    name: str
    axes: tuple[str, ...]
    device_ids: tuple[tuple[int, ...], ...]
    platform: str
    capacity_bytes: int
    ops: tuple[Op, ...]
    no_multicast: tuple[str | None, ...]
    capability: str = ""
    sm_margin: int = 0
    job: int | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def world_size(self) -> int:
        """Ranks per group."""
        return len(self.device_ids[0])


@dataclasses.dataclass(frozen=True)
class Problem:
    """One call, as shapes per rank.

    The rows of the product are numbered over all dimensions of x but the last:
    `batch` blocks of `rows` rows, of which rank r owns `shard_rows` beginning at
    `r * shard_rows`. The last owners may own fewer real rows, or none.

    Attributes:
      op: "reduce_scatter" or "all_reduce".
      x_shape: `[*batch, m, k]`.
      n: Columns of the product.
      world_size: Ranks of the group.
      dimension: The scattered dimension of x, not negative; None for all_reduce.
      dtype: Of x and w.
      out_dtype: Of the result.
    """

    op: Op
    x_shape: Shape
    n: int
    world_size: int
    dimension: int | None
    dtype: np.dtype[Any]
    out_dtype: np.dtype[Any]

    @property
    def k(self) -> int:
        """Length of the contraction on this rank."""
        return self.x_shape[-1]

    @property
    def product_shape(self) -> Shape:
        """Shape of `x @ w`."""
        return (*self.x_shape[:-1], self.n)

    @property
    def shard_size(self) -> int:
        """Entries of the scattered dimension that each rank owns."""
        if self.dimension is None:
            return ceil_div(self.rows, self.world_size)
        return ceil_div(self.x_shape[self.dimension], self.world_size)

    @property
    def out_shape(self) -> Shape:
        """Shape of the result on each rank."""
        if self.dimension is None:
            return self.product_shape
        shape = list(self.product_shape)
        shape[self.dimension] = self.shard_size
        return tuple(shape)

    @property
    def batch(self) -> int:
        """Blocks of rows that are scattered one by one."""
        return (
            1 if self.dimension is None else math.prod(self.x_shape[: self.dimension])
        )

    @property
    def rows(self) -> int:
        """Rows of one block."""
        return math.prod(self.x_shape[self.dimension or 0 : -1])

    @property
    def shard_rows(self) -> int:
        """Rows of one block that each rank owns, padding included."""
        if self.dimension is None:
            return self.shard_size
        return self.shard_size * math.prod(self.x_shape[self.dimension + 1 : -1])

    @property
    def need_bytes(self) -> int:
        """Workspace capacity that the call needs, in bytes."""
        padded_rows = self.batch * self.world_size * self.shard_rows
        return padded_rows * self.n * self.dtype.itemsize

    def need_bytes_on(self, platform: str) -> int:
        """`need_bytes`, and what a wider result takes besides on a platform.

        GPUs exchange the result of an all-reduce in its own dtype, in a second half of
        the memory that is as large as the first.
        """
        if platform not in GPU_PLATFORMS or self.op != "all_reduce":
            return self.need_bytes
        result_bytes = math.prod(self.out_shape) * self.out_dtype.itemsize
        return max(self.need_bytes, ceil_div(self.need_bytes + result_bytes, 2))

    def native_arguments(self, w_layout: WeightLayout) -> dict[str, Any]:
        """The call in the words of the native module."""
        return {
            "op": self.op,
            "dtype": self.dtype.name,
            "out_dtype": self.out_dtype.name,
            "w_layout": w_layout,
            "ranks": self.world_size,
            "batch": self.batch,
            "rows": self.rows,
            "shard_rows": self.shard_rows,
            "n": self.n,
            "k": self.k,
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which path a call takes, and why.

    Attributes:
      path: "host", "peer", "peer_pull", "multicast" or "xla".
      reason: Why this path, or, if `can_run` is false, what is in the way.
      can_run: Whether `path` can run this call.
      should_run: Whether `path="auto"` takes a fused path (any but "xla").
      config: Settings of the kernel, by name; None where there is no kernel.
    """

    path: Path
    reason: str
    can_run: bool
    should_run: bool
    config: Mapping[str, Any] | None = None


def ceil_div(a: int, b: int) -> int:
    """The least integer that is not below `a / b`."""
    return -(-a // b)


def capacity_bytes(world_size: int, max_m: int, n: int, dtype: np.dtype[Any]) -> int:
    """Capacity of a workspace for `[max_m, n]` products, rows padded to the group."""
    return world_size * ceil_div(max_m, world_size) * n * dtype.itemsize


def make_problem(
    op: Op,
    x: Any,
    w: Any,
    world_size: int,
    *,
    scatter_dimension: int = -2,
    w_layout: WeightLayout = "kn",
    preferred_element_type: Any = None,
) -> Problem:
    """Checks one call and describes it.

    Args:
      op: "reduce_scatter" or "all_reduce".
      x: Anything with `shape`, `dtype` and perhaps `weak_type`: `[*batch, m, k]`.
      w: The same: `[k, n]`, or `[n, k]` with `w_layout="nk"`.
      world_size: Ranks of the group.
      scatter_dimension: Dimension of x (not the last) to scatter; reduce_scatter only.
      w_layout: "kn" or "nk".
      preferred_element_type: dtype of the result: None or the operands' dtype, or
        float32.

    Raises:
      SymmValueError: Shapes, the scatter dimension or an option are wrong.
      SymmTypeError: A dtype is not supported, or x and w differ.
    """
    if op not in OPS:
        raise SymmValueError(f"op: got {op!r}, expected one of {OPS}")
    if w_layout not in get_args(WeightLayout):
        raise SymmValueError(f"{op}: w_layout: got {w_layout!r}, expected 'kn' or 'nk'")
    _refuse_symbols(op, x, w)
    n = _columns(op, tuple(x.shape), tuple(w.shape), w_layout)
    dtype = _operand_dtype(op, x, w)
    return Problem(
        op=op,
        x_shape=tuple(int(d) for d in x.shape),
        n=n,
        world_size=world_size,
        dimension=(
            _scatter_dimension(scatter_dimension, len(x.shape))
            if op == "reduce_scatter"
            else None
        ),
        dtype=dtype,
        out_dtype=_result_dtype(op, dtype, preferred_element_type),
    )


def _refuse_symbols(op: Op, x: Any, w: Any) -> None:
    for name, operand in (("x", x), ("w", w)):
        symbols = [d for d in operand.shape if not isinstance(d, (int, np.integer))]
        if symbols:
            shape = ", ".join(str(d) for d in operand.shape)
            raise SymmValueError(
                f"{op}: {name}: got shape ({shape}), whose size {symbols[0]} is a "
                "symbol, expected numbers: memory and kernels are made for sizes; "
                "export the program once for each size"
            )


def _columns(op: Op, x_shape: Shape, w_shape: Shape, w_layout: WeightLayout) -> int:
    if len(x_shape) < 2:
        raise SymmValueError(
            f"{op}: x: got shape {x_shape}, expected [*batch, m, k_local]"
        )
    wanted = "[k_local, n]" if w_layout == "kn" else "[n, k_local]"
    if len(w_shape) != 2:
        raise SymmValueError(
            f"{op}: w: got shape {w_shape}, expected {wanted} (w_layout={w_layout!r})"
        )
    k, n = w_shape if w_layout == "kn" else reversed(w_shape)
    if k != x_shape[-1]:
        raise SymmValueError(
            f"{op}: the contracted dimensions differ: x has shape {x_shape} with "
            f"k_local = {x_shape[-1]}, w has shape {w_shape} with k_local = {k} "
            f"(w_layout={w_layout!r} reads w as {wanted})"
        )
    return int(n)


def _operand_dtype(op: Op, x: Any, w: Any) -> np.dtype[Any]:
    for name, operand in (("x", x), ("w", w)):
        if getattr(operand, "weak_type", False):
            raise SymmTypeError(
                f"{op}: {name} is weakly typed ({operand.dtype}); give it a dtype, for "
                f"example {name}.astype(jax.numpy.bfloat16)"
            )
    if x.dtype != w.dtype:
        raise SymmTypeError(
            f"{op}: x and w must have one dtype, got x {x.dtype} {tuple(x.shape)} and "
            f"w {w.dtype} {tuple(w.shape)}; cast one of them"
        )
    if x.dtype not in DTYPES:
        raise SymmTypeError(
            f"{op}: got x {x.dtype} {tuple(x.shape)} and w {w.dtype} {tuple(w.shape)}, "
            f"expected {_DTYPE_TEXT}"
        )
    dtype: np.dtype[Any] = np.dtype(x.dtype)
    return dtype


def _result_dtype(op: Op, dtype: np.dtype[Any], preferred: Any) -> np.dtype[Any]:
    if preferred is None:
        return dtype
    wanted: np.dtype[Any] = np.dtype(preferred)
    if wanted not in (dtype, _FLOAT32):
        raise SymmTypeError(
            f"{op}: preferred_element_type: got {wanted}, expected None, {dtype} (the "
            "operands' dtype) or float32"
        )
    return wanted


def _scatter_dimension(dimension: int, ndim: int) -> int:
    normal = dimension + ndim if dimension < 0 else dimension
    if not 0 <= normal < ndim - 1:
        raise SymmValueError(
            f"reduce_scatter: scatter_dimension: got {dimension}, expected a dimension "
            f"of x other than the contracted last one: 0..{ndim - 2} or {-ndim}..-2"
        )
    return normal


def check_workspace(
    problem: Problem, axes: tuple[str, ...], spec: WorkspaceSpec
) -> None:
    """Refuses a workspace that was not made for this call.

    Raises:
      SymmValueError: Another axis, another size, another operation, or too small.
    """
    where = f"{problem.op}: workspace {spec.name!r}"
    if spec.axes != axes:
        raise SymmValueError(
            f"{where} was made for axis {axis_text(spec.axes)}, but the call names "
            f"axis {axis_text(axes)}"
        )
    if spec.world_size != problem.world_size:
        raise SymmValueError(
            f"{where} was made for {spec.world_size} ranks, but axis {axis_text(axes)} "
            f"has {problem.world_size} here: it belongs to another mesh"
        )
    if problem.op not in spec.ops:
        raise SymmValueError(
            f"{where} was made for ops={spec.ops}; create it with {problem.op!r} in ops"
        )
    need_bytes = problem.need_bytes_on(spec.platform)
    if need_bytes > spec.capacity_bytes:
        wider = problem.out_dtype != problem.dtype
        dtypes = f"{problem.dtype}{f' -> {problem.out_dtype}' if wider else ''}"
        raise SymmValueError(
            f"{where} is too small: x {problem.x_shape} by n = {problem.n} in "
            f"{dtypes} over {problem.world_size} ranks needs {need_bytes} bytes, it "
            f"has {spec.capacity_bytes}; create it with a larger max_m or n"
        )


def choose(
    problem: Problem, platform: str, spec: WorkspaceSpec | None, path: Path = "auto"
) -> Plan:
    """Chooses the path of a call.

    Args:
      problem: The call.
      platform: Where it is compiled for: "cpu", "gpu" ("cuda") or another.
      spec: The workspace, already checked with `check_workspace`, or None.
      path: A path to insist on, or "auto".

    Raises:
      SymmValueError: `path` is not a path.
    """
    if path not in PATHS:
        raise SymmValueError(f"path: got {path!r}, expected one of {PATHS}")
    automatic = _automatic(problem, platform, spec)
    if path in ("auto", automatic.path):
        return automatic
    if path == "xla":
        return dataclasses.replace(
            automatic, path="xla", reason="asked for with path='xla'", config=None
        )
    return dataclasses.replace(
        automatic,
        path=path,
        reason=_obstacle(path, platform, spec) or automatic.reason,
        can_run=False,
        config=None,
    )


def require(plan: Plan, op: Op, spec: WorkspaceSpec | None) -> None:
    """Raises what is in the way of a plan that cannot run.

    Raises:
      SymmStateError: The path needs a workspace and none is given.
      SymmUnsupportedError: The path is not for this call, platform or build.
    """
    if plan.can_run:
        return
    text = f"{op}: path={plan.path!r} cannot run: {plan.reason}"
    raise (SymmStateError if spec is None else SymmUnsupportedError)(text)


def _automatic(problem: Problem, platform: str, spec: WorkspaceSpec | None) -> Plan:
    obstacle = _obstacle("host", platform, spec)
    if obstacle is None:
        return Plan(
            "host", "CPU devices and a workspace", can_run=True, should_run=True
        )
    reason = obstacle if spec is None or platform == "cpu" else _no_kernel(platform)
    return Plan("xla", reason, can_run=True, should_run=False)


def _obstacle(path: Path, platform: str, spec: WorkspaceSpec | None) -> str | None:
    if spec is None:
        return "no workspace: pass workspace= or enter jax_symm.use_workspace(...)"
    if path != "host":
        return _no_kernel(platform)
    if platform != "cpu":
        return f"the host path needs CPU devices, this is compiled for {platform}"
    if spec.platform != "cpu":
        return f"workspace {spec.name!r} is on {spec.platform} devices"
    return None


def _no_kernel(platform: str) -> str:
    if platform == "cpu":
        return "this path needs CUDA devices, this is compiled for cpu"
    return f"no fused kernel for {platform} is built in"
