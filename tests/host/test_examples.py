"""Every example runs to its end in a process of its own and checks itself."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def run(name, *args):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *args],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name", ["equinox_layers.py", "flax_nnx_layers.py", "train_mlp.py"]
)
def test_training_matches_the_unsharded_model(name):
    output = run(name)
    assert "as unsharded" in output
    calls = int(output.rsplit("ranks:", 1)[1])
    assert calls > 0


@pytest.mark.parametrize("processes", [1, 2])
def test_tensor_parallel_mlp(processes):
    output = run("tensor_parallel_mlp.py", "--processes", str(processes))
    assert "path host" in output
