"""Builds the native tests under sanitizers and runs them.

The programs need neither Python nor JAX, so the sanitizers see nothing but our own
code. ``cmake --preset asan`` and ``ctest --preset asan`` do the same by hand.
"""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


# cmake and ninja of the environment that runs pytest, whether it is activated or not.
PATH = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])


def run(*command: str) -> None:
    done = subprocess.run(
        ["env", f"PATH={PATH}", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(900)
@pytest.mark.parametrize("preset", ["asan", "tsan"])
def test_host_runtime_under_sanitizers(preset: str) -> None:
    """No data race, no bad access, no leak in the stress of the host runtime."""
    run("cmake", "--preset", preset)
    run("cmake", "--build", "--preset", preset, "--parallel", "2")
    run("ctest", "--preset", preset)
