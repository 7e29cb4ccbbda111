"""Shares the ranks of tests/driver and the launcher of tests/host; forbids multicast."""

import contextlib
import os
import pathlib
import sys

import pytest

for folder in ("driver", "host"):
    sys.path.append(str(pathlib.Path(__file__).parents[1] / folder))

# Kernels of ranks that share a GPU wait for each other: each stream has a queue of its own.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")


@pytest.fixture(scope="session", autouse=True)
def no_multicast():
    """The GPUs may be others' too: what would make a multicast object aborts."""
    from jax_symm import _backends
    from jax_symm.errors import SymmUnsupportedError

    # Without a driver every test here skips.
    with contextlib.suppress(SymmUnsupportedError):
        _backends.forbid_multicast()


@pytest.fixture(scope="session")
def fake_machine():
    """The machine of the fake driver in this process."""
    from fake_cuda.launch import machine_of_process

    machine = machine_of_process()
    environment = machine.environment("raw")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FAKE_CUDA_SERVER", "FAKE_CUDA_PROCESS"):
            patch.setenv(name, environment[name])
        yield machine


@pytest.fixture
def fake_driver(fake_machine):
    """The path of the fake driver."""
    from fake_cuda.launch import library

    fake_machine.reset()
    yield str(library())
    fake_machine.reset()


@pytest.fixture
def open_rig(request):
    """Opens groups of ranks and closes them when the test ends."""
    import rank_rigs

    opened = []

    def open_(kind, ranks, **options):
        if kind == "fake":
            options["fake_driver"] = request.getfixturevalue("fake_driver")
        opened.append(rank_rigs.open_rig(kind, ranks, **options))
        return opened[-1]

    yield open_
    for rig in opened:
        rig.close()
