"""The committed stub of the extension module is what the module says."""

import pathlib
import subprocess
import sys

import jax_symm

STUB = pathlib.Path(jax_symm.__file__).parent / "_jax_symm.pyi"


def test_stub_is_fresh(tmp_path: pathlib.Path) -> None:
    fresh = tmp_path / "_jax_symm.pyi"
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "-q"]
    module = ["-m", "jax_symm._jax_symm", "-o", str(fresh)]
    subprocess.run([*stubgen, *module], check=True)
    assert STUB.read_text() == fresh.read_text(), (
        "the bindings changed: run python -m nanobind.stubgen -m jax_symm._jax_symm "
        "-o jax_symm/_jax_symm.pyi"
    )
