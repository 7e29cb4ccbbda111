"""The only importer of the native module; registers its FFI targets with XLA."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax

from jax_symm import _jax_compat

_TARGETS = {
    "reduce_scatter": "jax_symm.gemm_reduce_scatter.v1",
    "all_reduce": "jax_symm.gemm_all_reduce.v1",
}


def target_name(op: str) -> str:
    """The FFI target of an operation; its version changes with its operands."""
    return _TARGETS[op]


def target_names() -> tuple[str, ...]:
    """Every FFI target of jax_symm."""
    return tuple(_TARGETS.values())


@functools.cache
def module() -> Any:
    """The native module.

    Raises:
      ImportError: It is not built for this interpreter; the loader's own text says why.
    """
    return importlib.import_module("jax_symm._jax_symm")


@functools.cache
def register_ffi_targets() -> None:
    """Registers the FFI types and targets with XLA, once a process; starts the backend.

    Opening a workspace and lowering an operation do this by themselves. Call it before
    loading a program that was compiled or exported elsewhere: XLA looks the targets up
    while it loads.

    Collective: no.
    """
    # Never at import: on CPU a stateful target that is queued before the client is made
    # breaks the making of the client.
    jax.local_devices()
    _jax_compat.warn_if_untested()
    native = module()
    for name, capsules in native.ffi_types().items():
        jax.ffi.register_ffi_type(name, capsules, platform="cpu")
    for name, stages in native.ffi_targets().items():
        jax.ffi.register_ffi_target(name, stages, platform="cpu")
    for name, capsules in native.cuda_ffi_types().items():
        jax.ffi.register_ffi_type(name, capsules, platform="CUDA")
    for name, stages in native.cuda_ffi_targets().items():
        jax.ffi.register_ffi_target(name, stages, platform="CUDA")
