"""Which path a call takes on each platform; on CUDA what kernels can and should run.

The choice comes from static facts alone, by the byte-and-rate model of the native
module, so every process that sees the same call and workspace chooses alike.
"""

from __future__ import annotations

from typing import Any

from jax_symm import _native
from jax_symm.config import Path
from jax_symm.ops import _crossover, _rules
from jax_symm.ops._rules import GPU_PLATFORMS, Plan, Problem, WorkspaceSpec

# Compute capability -> architecture of the kernels and multiprocessors of the GPU.
_ARCHITECTURES = {
    "9.0": ("sm90", 132),  # H100, H200
    "10.0": ("sm100", 148),  # B200, GB200
    "10.3": ("sm100", 148),  # B300, GB300
}


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
    if platform in GPU_PLATFORMS and spec is not None and path in _rules.PATHS:
        return _choose_on_gpu(problem, spec, path)
    return _rules.choose(problem, platform, spec, path)


def _choose_on_gpu(problem: Problem, spec: WorkspaceSpec, path: Path) -> Plan:
    if path == "xla":
        return Plan("xla", "asked for with path='xla'", can_run=True, should_run=False)
    obstacle = _obstacle(problem, spec, path)
    native = {} if obstacle else _native_plan(problem, spec, path)
    if not obstacle and not native["can_run"]:
        obstacle = native["reason"]
    if obstacle:
        if path == "auto":
            return Plan("xla", obstacle, can_run=True, should_run=False)
        return Plan(path, obstacle, can_run=False, should_run=False)
    should_run, reason = _measured(problem, spec) or (
        bool(native["should_run"]),
        str(native["reason"]),
    )
    if path == "auto" and not should_run:
        return Plan("xla", reason, can_run=True, should_run=False)
    return Plan(
        native["path"] if path == "auto" else path,
        reason,
        can_run=True,
        should_run=should_run,
        config=native["config"],
    )


def _measured(problem: Problem, spec: WorkspaceSpec) -> tuple[bool, str] | None:
    """Whether fusing was measured to pay, and how; None where nothing was measured."""
    found = _crossover.find(
        _ARCHITECTURES[spec.capability][0],
        problem.op,
        problem.world_size,
        problem.n,
        problem.k,
    )
    if found is None or has_multicast(spec):
        return None
    layer = f"measured at n = {found.n}, k = {found.k}: fused is faster"
    if found.least_m is None:
        return False, f"{layer} at no m"
    m = problem.batch * problem.rows
    return m >= found.least_m, f"{layer} from m = {found.least_m} on, this has {m}"


def has_multicast(spec: WorkspaceSpec) -> bool:
    """Whether every group of a workspace agreed on multicast."""
    return all(reason is None for reason in spec.no_multicast)


def _obstacle(problem: Problem, spec: WorkspaceSpec, path: Path) -> str | None:
    if path == "host":
        return "the host path needs CPU devices, this is compiled for CUDA"
    if spec.platform not in GPU_PLATFORMS:
        return f"workspace {spec.name!r} is on {spec.platform} devices"
    if spec.capability not in _ARCHITECTURES:
        return f"no fused kernel for compute capability {spec.capability}"
    architecture, _ = _ARCHITECTURES[spec.capability]
    if architecture not in _native.module().cuda_kernel_architectures():
        return "this build holds no kernels (JAX_SYMM_ENABLE_CUDA was off)"
    if 0 in problem.product_shape or problem.k == 0:
        return "an empty product"
    if path == "multicast" and not has_multicast(spec):
        reasons = {reason for reason in spec.no_multicast if reason is not None}
        return f"no multicast: {'; '.join(sorted(reasons))}"
    return None


def _native_plan(problem: Problem, spec: WorkspaceSpec, path: Path) -> dict[str, Any]:
    plan: dict[str, Any] = _native.module().plan_cuda_call(
        architecture=_ARCHITECTURES[spec.capability][0],
        **problem.native_arguments("kn"),  # either layout takes the same path and shape
        multicast=has_multicast(spec),
        capacity_bytes=spec.capacity_bytes,
        multiprocessors=_ARCHITECTURES[spec.capability][1] - spec.sm_margin,
        path=path,
    )
    return plan
