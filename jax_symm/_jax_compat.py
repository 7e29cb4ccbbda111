"""Every dependence of jax_symm on what is not public in JAX, or on its version."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
from jax._src import core as _core
from jax._src import distributed as _distributed

# The class of `jax.extend.core`, whose import takes Pallas with it: 20 ms.
Primitive = _core.Primitive

_NEWEST_TESTED = (0, 12)


@functools.cache
def warn_if_untested() -> None:
    """Warns, once a process, when JAX is newer than the newest version tested."""
    if jax.__version_info__[:2] > _NEWEST_TESTED:
        newest = ".".join(map(str, _NEWEST_TESTED))
        warnings.warn(
            f"jax_symm has been tested with jax up to {newest}.x; this is "
            f"jax {jax.__version__}. If something breaks, report both versions.",
            stacklevel=3,
        )


def coordination_client() -> Any:
    """The client of JAX's coordination service, or None in a job of one process.

    Its methods used here: `key_value_set_bytes`, `key_value_try_get_bytes`,
    `key_value_delete` and `wait_at_barrier(id, timeout_in_ms, process_ids=)`.
    """
    return _distributed.global_state.client


def default_matmul_precision() -> Any:
    """What `jax.default_matmul_precision` has set on this thread, or None."""
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]


def under_trace() -> bool:
    """Whether a transformation or `jax.jit` is tracing on this thread."""
    return not _core.trace_state_clean()
