"""pytest fixtures for kernel tests: machines whose seed a failure prints, and nvcc."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from .machine import Machine

FLAGS = ("-ptx", "-std=c++20", "-O3")


class SeededMachine(Machine):
    """A machine that notes how it was last run."""

    last_run: str | None = None

    def run(self, seed=0, schedule=None, *, on_race="raise"):
        self.last_run = f"seed={seed}, schedule={schedule}"
        return super().run(seed, schedule, on_race=on_race)


@pytest.fixture
def emulated_machine(request) -> Callable[..., Machine]:
    """Makes machines; when the test fails their last seed and schedule are shown."""
    made: list[SeededMachine] = []

    def make(*args, **options) -> Machine:
        made.append(SeededMachine(*args, **options))
        return made[-1]

    yield make
    runs = [m.last_run for m in made if m.last_run]
    request.node.add_report_section("call", "emulated runs", "\n".join(runs))


@functools.cache
def _compile(source: str, arch: str, flags: tuple[str, ...]) -> str:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise FileNotFoundError("nvcc is not on PATH")
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "kernel.ptx")
        command = [nvcc, *FLAGS, f"-arch={arch}", *flags, "-o", str(output), source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
        return output.read_text()


@pytest.fixture
def compile_ptx() -> Callable[..., str]:
    """Compiles a .cu file: `compile_ptx(path, "sm_90a", "-Iinclude")` returns PTX."""

    def compile_file(path: Path | str, arch: str, *flags: str) -> str:
        return _compile(str(path), arch, flags)

    return compile_file
