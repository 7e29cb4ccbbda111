"""Fused GEMM + reduce-scatter / all-reduce and symmetric memory for JAX.

Importing this package starts no backend and touches no driver.
"""

from jax_symm import errors as errors
from jax_symm._backends import multicast_objects_in_use as multicast_objects_in_use
from jax_symm._native import register_ffi_targets as register_ffi_targets
from jax_symm.agreement import agree as agree
from jax_symm.memory import empty as empty
from jax_symm.memory import multicast_rendezvous as multicast_rendezvous
from jax_symm.memory import peer_rendezvous as peer_rendezvous
from jax_symm.ops import reference as reference
from jax_symm.ops._rules import Plan as Plan
from jax_symm.ops.gemm import all_gather_gemm as all_gather_gemm
from jax_symm.ops.gemm import can_run as can_run
from jax_symm.ops.gemm import explain as explain
from jax_symm.ops.gemm import gemm_all_reduce as gemm_all_reduce
from jax_symm.ops.gemm import gemm_reduce_scatter as gemm_reduce_scatter
from jax_symm.ops.gemm import plan as plan
from jax_symm.ops.gemm import should_run as should_run
from jax_symm.workspace import Workspace as Workspace
from jax_symm.workspace import export_safety_checks as export_safety_checks
from jax_symm.workspace import use_workspace as use_workspace

__version__ = "0.1.0"
