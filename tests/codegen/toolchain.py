"""nvcc and nvdisasm: kernel sources to PTX, SASS and resource use, cached by content."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

FFI = Path(__file__).parents[2] / "ffi"
_FLAGS = ("-std=c++20", "-O3", "-Werror=all-warnings", f"-I{FFI}")
_TARGETS = {
    "sm_90a": ("compute_90a", "sm_90a"),
    "sm_100f": ("compute_100f", "sm_100f"),
}


@dataclass(frozen=True)
class Resources:
    """What ptxas says of one kernel."""

    registers: int
    stack_bytes: int
    spill_bytes: int


def find_tool(name: str) -> Path | None:
    """The system's tool, or the one of NVIDIA's wheels."""
    candidates = [os.environ.get(f"JAX_SYMM_{name.upper()}"), shutil.which(name)]
    candidates.append(f"/usr/local/cuda/bin/{name}")
    wheel = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin" / name
    candidates.append(str(wheel))
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    return None


def require_tool(name: str) -> Path:
    """As find_tool; skips the test, saying why, where there is none."""
    tool = find_tool(name)
    if tool is None:
        wanted = os.environ.get("JAX_SYMM_TEST_REQUIRE", "").split(",")
        reason = f"{name} is not installed (CUDA 13 toolkit, or nvidia-cuda-{name})"
        if "codegen" in wanted:
            pytest.fail(reason)
        pytest.skip(reason)
    return tool


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


@functools.cache
def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted((FFI / "kernels").rglob("*")):
        if path.is_file():
            digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _cached(source: str, target: str, suffix: str) -> tuple[Path, bool]:
    # The suffix counts, so that each output has a log of its own.
    text = f"{_sources_digest()}{source}{target}{suffix}{_FLAGS}"
    key = hashlib.sha256(text.encode())
    folder = Path(tempfile.gettempdir()) / f"jax_symm_codegen_{os.getuid()}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{key.hexdigest()[:24]}{suffix}"
    return path, path.exists()


def _compile(source: str, target: str, suffix: str, options: list[str]) -> Path:
    path, ready = _cached(source, target, suffix)
    if ready:
        return path
    nvcc = require_tool("nvcc")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unit = Path(folder) / "unit.cu"
        unit.write_text(source)
        result = Path(folder) / f"unit{suffix}"
        log = _run([str(nvcc), *_FLAGS, *options, "-o", str(result), str(unit)]).stderr
        path.with_suffix(".log").write_text(log)
        result.rename(path)
    return path


def compile_ptx(source: str, target: str) -> str:
    """The PTX of a translation unit, given as text."""
    virtual, _ = _TARGETS[target]
    return _compile(source, target, ".ptx", ["-ptx", f"-arch={virtual}"]).read_text()


def compile_cubin(source: str, target: str) -> Path:
    """The binary of a translation unit, given as text."""
    virtual, real = _TARGETS[target]
    gencode = f"-gencode=arch={virtual},code={real}"
    return _compile(source, target, ".cubin", ["-cubin", gencode, "-Xptxas=-v"])


@functools.cache
def resources(cubin: Path) -> dict[str, Resources]:
    """Registers, stack and spills of every kernel, from the log of its compilation."""
    log = cubin.with_suffix(".log").read_text()
    pattern = re.compile(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes "
        r"spill stores, (\d+) bytes spill loads.*?Used (\d+) registers",
        re.DOTALL,
    )
    return {
        name: Resources(int(registers), int(stack), int(stores) + int(loads))
        for name, stack, stores, loads, registers in pattern.findall(log)
    }


@functools.cache
def sass(cubin: Path) -> dict[str, list[str]]:
    """The instructions of every kernel, operands included, without addresses."""
    text = _run([str(require_tool("nvdisasm")), str(cubin)]).stdout
    kernels: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.(\w+)", line):
            current = kernels.setdefault(section[1], [])
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            current.append(instruction[1])
    return kernels
