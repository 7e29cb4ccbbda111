"""What a new workspace is asked for: checks, defaults, and what must be alike.

Nothing here raises: what is wrong in one process is for the contract round, so that
every process raises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_symm import _native
from jax_symm._contract import Agreed
from jax_symm._rendezvous import MAX_BYTES
from jax_symm.errors import (
    SymmError,
    SymmStateError,
    SymmTypeError,
    SymmUnsupportedError,
    SymmValueError,
)
from jax_symm.group import MeshGroups
from jax_symm.ops import _crossover
from jax_symm.ops._rules import DTYPES, GPU_PLATFORMS, OPS, Op

_MULTICAST = ("never", "auto", "require")
_CPU_TIMEOUT_S = 30.0
_CUDA_TIMEOUT_S = 600.0

#: Names of the workspaces that are open in this process.
open_names: set[str] = set()


def default_timeout_s(platform: str) -> float:
    """How long a call waits for a peer where the user does not say."""
    return _CPU_TIMEOUT_S if platform == "cpu" else _CUDA_TIMEOUT_S


def sorted_ops(ops: Any) -> tuple[Any, ...]:
    """The operations in one order, if they are operations."""
    return tuple(op for op in OPS if op in ops) if _is_known(ops) else (ops,)


def must_be_alike(
    max_m: Any,
    n: Any,
    dtype: Any,
    ops: Any,
    multicast: Any,
    name: Any,
    timeout_s: Any,
    sm_margin: Any,
) -> dict[str, Any]:
    """The request as the contract round compares it."""
    return {
        "call": "Workspace",
        "name": _plain(name),
        "max_m": _plain(max_m),
        "n": _plain(n),
        "dtype": _dtype_name(dtype),
        "ops": [_plain(op) for op in ops],
        "multicast": _plain(multicast),
        "timeout_s": _plain(timeout_s),
        "sm_margin": _plain(sm_margin),
        "crossover": repr(_crossover.table()),
    }


def _dtype_name(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype))
    except TypeError:
        return str(dtype)


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it, however wrong it is."""
    if isinstance(value, np.integer):
        return int(value)
    return value if isinstance(value, int | float | str | None) else repr(value)


def _is_known(ops: Any) -> bool:
    if isinstance(ops, str) or not isinstance(ops, Sequence):
        return False
    return len(ops) > 0 and all(op in OPS for op in ops)


def check_arguments(
    max_m: Any,
    n: Any,
    dtype: Any,
    ops: Any,
    multicast: Any,
    name: Any,
    timeout_s: Any,
    sm_margin: Any,
) -> SymmError | None:
    """What is wrong with a request in this process, or None."""
    if wrong := _check_size(max_m, n, dtype, sm_margin):
        return wrong
    if not _is_known(ops):
        return SymmValueError(
            f"Workspace: ops: got {ops!r}, expected a non-empty selection of {OPS}"
        )
    if multicast not in _MULTICAST:
        return SymmValueError(
            f"Workspace: multicast: got {multicast!r}, expected one of {_MULTICAST}"
        )
    if timeout_s is not None and not (
        isinstance(timeout_s, int | float) and 0 < timeout_s < 1e6
    ):
        return SymmValueError(
            f"Workspace: timeout_s: got {timeout_s!r}, expected seconds, 0 to 1e6"
        )
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= 128):
        return SymmValueError(
            f"Workspace: name: got {name!r}, expected a text of 1 to 128 characters"
        )
    if name in open_names:
        return SymmStateError(
            f"Workspace({name!r}): the name is already open; close that workspace "
            "first, or give this one another name"
        )
    return None


def _check_size(max_m: Any, n: Any, dtype: Any, sm_margin: Any) -> SymmError | None:
    for label, value in (("max_m", max_m), ("n", n), ("sm_margin", sm_margin)):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | np.integer)
            or value < 0
        ):
            return SymmValueError(
                f"Workspace: {label}: got {value!r}, expected an integer >= 0"
            )
    try:
        supported = np.dtype(dtype) in DTYPES
    except TypeError:
        supported = False
    if not supported:
        return SymmTypeError(
            f"Workspace: dtype: got {dtype}, expected bfloat16, float16 or float32"
        )
    nbytes = int(max_m) * int(n) * np.dtype(dtype).itemsize
    if nbytes > MAX_BYTES:
        return SymmValueError(
            f"Workspace: max_m = {max_m} by n = {n} in {np.dtype(dtype)}: got {nbytes} "
            f"bytes, expected at most {MAX_BYTES}"
        )
    return None


def free_name(groups: MeshGroups, agreed: Agreed) -> str:
    """The default name: the first that is free in every process."""
    taken = {name for own in agreed.own for name in own["open"]}
    prefix = ".".join(groups.axes) or "none"
    return next(
        name
        for name in (f"{prefix}-{k}" for k in range(len(taken) + 1))
        if name not in taken
    )


def why_spared(ops: tuple[Op, ...], multicast: str, agreed: Agreed) -> str | None:
    """Why no multicast object is spent on a workspace, whatever the machine has."""
    if multicast == "never":
        return "asked for with multicast='never'"
    if multicast == "auto" and "all_reduce" not in ops:
        return agreed.veto or "reduce_scatter alone gains nothing from it"
    return None


def check_devices(groups: MeshGroups) -> SymmError | None:
    """Workspaces are on CPU devices, and on GPUs where the kernels are built in."""
    if groups.platform == "cpu":
        return None
    if (
        groups.platform not in GPU_PLATFORMS
        or not _native.module().cuda_kernel_architectures()
    ):
        return SymmUnsupportedError(
            f"Workspace: a workspace on {groups.platform} devices is not in this build "
            "(no fused kernels); without one the operations take the path 'xla', and "
            "empty() makes symmetric memory for kernels of your own"
        )
    found = sorted({capability_of(d) for row in groups.devices for d in row})
    if len(found) > 1:
        return SymmUnsupportedError(
            f"Workspace: the mesh has GPUs of compute capabilities {', '.join(found)}, "
            "expected one: ranks must run the same kernel; make the mesh of one kind"
        )
    return None


def memory_bytes(groups: MeshGroups, capacity: int, ops: Sequence[Op]) -> int:
    """Bytes of symmetric memory per rank."""
    native = _native.module()
    on_gpu = groups.platform in GPU_PLATFORMS
    size = native.cuda_workspace_nbytes if on_gpu else native.host_workspace_nbytes
    return int(size(groups.world_size, capacity, "all_reduce" in ops))


def capability_of(device: Any) -> str:
    """The compute capability of a device, for example "9.0"; "" on CPU."""
    return str(getattr(device, "compute_capability", ""))
