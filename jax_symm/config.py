"""Settings: the environment, read and validated in this file alone.

`JAX_SYMM_PATH` changes which path runs, so it is read once per process and compared
between processes when a workspace is created.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Literal, TypeVar, get_args

from jax_symm.errors import SymmValueError

Path = Literal["auto", "host", "peer", "peer_pull", "multicast", "xla"]

_PATHS: tuple[Path, ...] = get_args(Path)

_Choice = TypeVar("_Choice", bound=str)

# Each of these, set to this value, is how a site says no to multicast objects.
_MULTICAST_VETOES = (
    ("JAX_SYMM_MULTICAST", "0"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
    ("NVSHMEM_DISABLE_NVLS", "1"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Attributes:
      path: What `path="auto"` means, from `JAX_SYMM_PATH`; "auto" lets jax_symm choose.
      init_timeout_s: Longest time that a collective set-up waits, in seconds, from
        `JAX_SYMM_INIT_TIMEOUT_S`.
      multicast_budget: How many multicast objects this process may hold, from
        `JAX_SYMM_MULTICAST_BUDGET`. A rack has one pool of them for all its jobs.
      multicast_capacity_mib: Size of a new multicast object, which buffers of one set
        of devices share, in MiB, from `JAX_SYMM_MULTICAST_CAPACITY_MIB`.
      multicast_veto: The assignment that forbids multicast here
        (for example "NCCL_NVLS_ENABLE=0"), or None.
    """

    path: Path = "auto"
    init_timeout_s: float = 300.0
    multicast_budget: int = 4
    multicast_capacity_mib: int = 1024
    multicast_veto: str | None = None

    def path_settings(self) -> tuple[str, ...]:
        """The settings that must be equal in every process, as text."""
        return (
            f"JAX_SYMM_PATH={self.path}",
            f"JAX_SYMM_MULTICAST_CAPACITY_MIB={self.multicast_capacity_mib}",
        )


def parse(environ: Mapping[str, str]) -> Settings:
    """Reads the settings from `environ`.

    Raises:
      SymmValueError: A variable has a value that means nothing.
    """
    return Settings(
        path=_choice(environ, "JAX_SYMM_PATH", _PATHS, "auto"),
        init_timeout_s=_seconds(environ, "JAX_SYMM_INIT_TIMEOUT_S", 300.0),
        multicast_budget=_count(environ, "JAX_SYMM_MULTICAST_BUDGET", 4),
        multicast_capacity_mib=_count(environ, "JAX_SYMM_MULTICAST_CAPACITY_MIB", 1024),
        multicast_veto=_multicast_veto(environ),
    )


@functools.cache
def settings() -> Settings:
    """The settings of this process, read on first use; the defaults if one is broken.

    `problem` says what is broken, and every set-up raises it, on all processes.
    """
    try:
        return parse(os.environ)
    except SymmValueError:
        return Settings()


def problem() -> SymmValueError | None:
    """What is wrong with the environment of this process, or None."""
    try:
        parse(os.environ)
    except SymmValueError as error:
        return error
    return None


def _choice(
    environ: Mapping[str, str],
    name: str,
    choices: tuple[_Choice, ...],
    default: _Choice,
) -> _Choice:
    value = environ.get(name, "").strip().lower() or default
    for choice in choices:
        if choice == value:
            return choice
    raise SymmValueError(
        f"{name}: got {environ[name]!r}, expected one of {', '.join(choices)}"
    )


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise SymmValueError(
            f"{name}: got {text!r}, expected a number of seconds between 0 and 1e6"
        )
    return value


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or int(text) >= 2**31:
        raise SymmValueError(f"{name}: got {text!r}, expected an integer >= 0")
    return int(text)


def _multicast_veto(environ: Mapping[str, str]) -> str | None:
    for name, no in _MULTICAST_VETOES:
        if environ.get(name, "").strip() == no:
            return f"{name}={no}"
    return None
