"""Shares the ranks of tests/driver and the launcher of tests/host; forbids multicast."""

import contextlib
import pathlib
import sys

import pytest

for folder in ("driver", "host"):
    sys.path.append(str(pathlib.Path(__file__).parents[1] / folder))


@pytest.fixture(scope="session", autouse=True)
def no_multicast():
    """The GPUs may be others' too: what would make a multicast object aborts."""
    from jax_symm import _backends
    from jax_symm.errors import SymmUnsupportedError

    # Without a driver every test here skips.
    with contextlib.suppress(SymmUnsupportedError):
        _backends.forbid_multicast()
