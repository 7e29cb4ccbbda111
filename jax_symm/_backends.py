"""Which memory backend serves a platform, and this process's books on multicast."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from jax_symm import _native, config
from jax_symm._multicast_books import Books, Range
from jax_symm._rendezvous import GroupMemory
from jax_symm.errors import SymmUnsupportedError

_installed: dict[str, Any] = {}


def backend(platform: str) -> Any:
    """The verbs of the memory of a platform's devices.

    Raises:
      SymmUnsupportedError: There is none, or its driver cannot be loaded.
    """
    return _installed.get(platform) or _default(platform)


@functools.cache
def _default(platform: str) -> Any:
    if platform == "cpu":
        return _native.module().host_backend()
    if platform in ("gpu", "cuda"):
        return _native.module().cuda_backend()
    raise SymmUnsupportedError(
        f"symmetric memory on {platform} devices is not in jax_symm"
    )


def install(platform: str, made: Any) -> None:
    """Serves a platform by another backend: a fake driver, or one without multicast."""
    _installed[platform] = made


def forbid_multicast() -> None:
    """Serves GPUs by a driver table whose multicast calls abort the process.

    For tests and benchmarks on hosts that others share: there a multicast object can
    put GPUs out of service, so no setting may lead to one.

    Raises:
      SymmUnsupportedError: The driver cannot be loaded.
    """
    made = _native.module().cuda_backend(forbid_multicast=True)
    for platform in ("gpu", "cuda"):
        install(platform, made)


@functools.cache
def books() -> Books:
    """This process's books on multicast."""
    settings = config.settings()
    return Books(
        budget=settings.multicast_budget,
        veto=settings.multicast_veto,
        in_use=multicast_objects_in_use,
    )


def multicast_objects_in_use() -> int:
    """How many multicast objects this process holds, those in quarantine included.

    Each is a slot of a pool that all jobs of a host or rack share. Objects of NCCL and
    of other libraries in this process are not seen.

    Collective: no.
    """
    return int(_native.module().ledger()["multicast_objects"])


def quarantine(
    why: str, memory: Iterable[GroupMemory], ranges: Iterable[Range]
) -> None:
    """Keeps memory until the process ends, and counts it: a kernel may still use it."""
    held, bound = list(memory), list(ranges)
    _native.module().quarantine(
        why,
        [mapping for one in held for mapping in one.mappings.values()],
        [allocation for one in held for allocation in one.allocations.values()],
        [binding for range_ in bound for binding in range_.bindings],
    )
    for one in held:
        one.release()


class Missing:
    """Stands for a backend that could not be made: every use raises the reason."""

    def __init__(self, error: Exception):
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error
