"""Settings that must precede JAX's first use, and the one place where tests skip.

A test that needs hardware or a tool says so with `@pytest.mark.requires("gpu")`, or
`@pytest.mark.multigpu(n)` for n GPUs. Where it is missing the test skips with the reason,
unless `JAX_SYMM_TEST_REQUIRE` names it, as "gpu,multigpu2" does: then the test fails.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess

import pytest

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
# Stock JAX on CPU hangs with many launches in flight when its pool is small.
os.environ.setdefault("PJRT_NPROC", "64")
# A test's processes share its GPUs.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Tests compile many small programs once: optimising them would take most of the time.
_flags = ["--xla_backend_optimization_level=0"]
if importlib.util.find_spec("jaxlib") and importlib.metadata.version(
    "jaxlib"
).startswith("0.10."):
    _flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_flags))


def _find_cuda_wheels() -> None:
    """Puts the compiler of the nvidia-cuda-* wheels on PATH, after any other."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        tools = pathlib.Path(root, "cu13", "bin")
        if tools.is_dir():
            os.environ["PATH"] += f"{os.pathsep}{tools}"


_find_cuda_wheels()


def _no_gpu() -> str | None:
    import jax

    try:
        jax.devices("cuda")
    except RuntimeError as error:
        return f"no CUDA device: {error}"
    return None


def _too_few_gpus(wanted: int) -> str | None:
    import jax

    try:
        found = len(jax.devices("cuda"))
    except RuntimeError:
        found = 0
    return None if found >= wanted else f"needs {wanted} GPUs, found {found}"


def _no_kernels() -> str | None:
    from jax_symm import _native

    if "sm90" in _native.module().cuda_kernel_architectures():
        return None
    return "this build holds no CUDA kernels (JAX_SYMM_CUDA was not set)"


def _no_nvcc() -> str | None:
    return None if shutil.which("nvcc") else "nvcc is not on PATH"


def _no_hopper() -> str | None:
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        return "nvidia-smi is not on PATH"
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    if "9.0" in found.split():
        return None
    return f"no GPU of compute capability 9.0, found {found.split()}"


def _no_cutlass() -> str | None:
    if importlib.util.find_spec("cutlass_library"):
        return None
    return "the package nvidia-cutlass is not installed"


_PROBES = {
    "gpu": _no_gpu,
    "hopper": _no_hopper,
    "kernels": _no_kernels,
    "nvcc": _no_nvcc,
    "cutlass": _no_cutlass,
}


def pytest_configure(config):
    config.addinivalue_line("markers", "requires(name): needs hardware or a tool")
    config.addinivalue_line("markers", "multigpu(n): needs n GPUs")


def pytest_runtest_setup(item):
    for mark in item.iter_markers("requires"):
        for name in mark.args:
            _require(name, _PROBES[name]())
    for mark in item.iter_markers("multigpu"):
        (wanted,) = mark.args
        _require(f"multigpu{wanted}", _too_few_gpus(wanted))


def _require(name, missing):
    required = os.environ.get("JAX_SYMM_TEST_REQUIRE", "").split(",")
    if missing and name in required:
        pytest.fail(f"JAX_SYMM_TEST_REQUIRE names {name}, but {missing}")
    if missing:
        pytest.skip(missing)
