"""What a new workspace is asked for: checks, defaults, and what must be alike.

Nothing here raises: what is wrong in one process is for the contract round, so that
every process raises it.
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class WorkspaceRequest:
    """The arguments of `Workspace`, however wrong they are."""

    max_m: Any
    n: Any
    dtype: Any
    ops: Any
    multicast: Any
    name: Any
    timeout_s: Any
    sm_margin: Any

    def sorted_ops(self) -> tuple[Any, ...]:
        """The operations in one order, if they are operations."""
        if not self._are_ops():
            return (self.ops,)
        return tuple(op for op in OPS if op in self.ops)

    def alike(self) -> dict[str, Any]:
        """The request as the contract round compares it."""
        values = {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
        }
        return values | {
            "call": "Workspace",
            "dtype": _dtype_name(self.dtype),
            "ops": [_plain(op) for op in self.sorted_ops()],
            "crossover": repr(_crossover.table()),
        }

    def wrong(self) -> SymmError | None:
        """What is wrong with the request in this process, or None."""
        return self._wrong_size() or self._wrong_option() or self._wrong_name()

    def _are_ops(self) -> bool:
        if isinstance(self.ops, str) or not isinstance(self.ops, Sequence):
            return False
        return len(self.ops) > 0 and all(op in OPS for op in self.ops)

    def _wrong_size(self) -> SymmError | None:
        for label in ("max_m", "n", "sm_margin"):
            value = getattr(self, label)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | np.integer)
                or value < 0
            ):
                return SymmValueError(
                    f"Workspace: {label}: got {value!r}, expected an integer >= 0"
                )
        try:
            supported = np.dtype(self.dtype) in DTYPES
        except TypeError:
            supported = False
        if not supported:
            return SymmTypeError(
                f"Workspace: dtype: got {self.dtype}, expected bfloat16, float16 or "
                "float32"
            )
        dtype = np.dtype(self.dtype)
        nbytes = int(self.max_m) * int(self.n) * dtype.itemsize
        if nbytes > MAX_BYTES:
            return SymmValueError(
                f"Workspace: max_m = {self.max_m} by n = {self.n} in {dtype}: got "
                f"{nbytes} bytes, expected at most {MAX_BYTES}"
            )
        return None

    def _wrong_option(self) -> SymmError | None:
        if not self._are_ops():
            return SymmValueError(
                f"Workspace: ops: got {self.ops!r}, expected a non-empty selection of "
                f"{OPS}"
            )
        if self.multicast not in _MULTICAST:
            return SymmValueError(
                f"Workspace: multicast: got {self.multicast!r}, expected one of "
                f"{_MULTICAST}"
            )
        if not (isinstance(self.timeout_s, int | float) and 0 < self.timeout_s < 1e6):
            return SymmValueError(
                f"Workspace: timeout_s: got {self.timeout_s!r}, expected seconds, 0 to "
                "1e6"
            )
        return None

    def _wrong_name(self) -> SymmError | None:
        name = self.name
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


def default_timeout_s(platform: str) -> float:
    """How long a call waits for a peer where the user does not say."""
    return _CPU_TIMEOUT_S if platform == "cpu" else _CUDA_TIMEOUT_S


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
