"""Builds the fake driver's library and runs its server, for tests."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from multiprocessing.connection import Client
from typing import Any

_HERE = pathlib.Path(__file__).parent
_REPOSITORY = _HERE.parents[2]

#: `counts()` of a machine on which nothing is left.
NOTHING = dict.fromkeys(
    ("handles", "mappings", "ranges", "descriptors", "objects", "slots"), 0
)


@functools.cache
def library() -> pathlib.Path:
    """The shared library, built when its sources are newer."""
    sources = [_HERE / "fake_cuda.cc", _HERE / "fake_launch.cc"]
    headers = [
        _HERE / "fake_launch.h",
        _REPOSITORY / "ffi/driver/driver_abi.h",
        *(_REPOSITORY / "ffi/kernels/layout").glob("*.h"),
    ]
    built = _HERE / "build/libfake_cuda.so"
    newest = max(path.stat().st_mtime for path in (*sources, *headers))
    if built.exists() and built.stat().st_mtime > newest:
        return built
    built.parent.mkdir(exist_ok=True)
    # Sessions may build at once: each its own file, the rename is atomic.
    temporary = built.with_suffix(f".{os.getpid()}")
    subprocess.run(
        [
            os.environ.get("CXX", "g++"),
            *("-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"),
            f"-I{_REPOSITORY / 'ffi'}",
            *map(str, sources),
            *("-o", str(temporary)),
        ],
        check=True,
    )
    temporary.rename(built)
    return built


class FakeMachine:
    """A running server. Attributes not found here are calls of server.Control."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="fake_cuda-")
        self.path = f"{self._directory.name}/s"
        self._server = subprocess.Popen(
            [sys.executable, "-m", "fake_cuda.server", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_HERE.parent,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        self._control = Client(self.path + ".control", "AF_UNIX")

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self._control.send((name, arguments))
            return self._control.recv()

        return call

    def environment(self, tag: str, visible: str = "", **more: str) -> dict[str, str]:
        """The environment of a process on this machine."""
        return {
            "FAKE_CUDA_SERVER": self.path,
            "FAKE_CUDA_LIBRARY": str(library()),
            "FAKE_CUDA_PROCESS": tag,
            "CUDA_VISIBLE_DEVICES": visible,
            **more,
        }

    def close(self) -> None:
        """Ends the server."""
        self._control.close()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)
        assert self._server.stdout is not None
        self._server.stdout.close()
        self._directory.cleanup()


@functools.cache
def machine_of_process() -> FakeMachine:
    """The machine of this process: the library in it connects to one and no other."""
    machine = FakeMachine()
    atexit.register(machine.close)
    return machine
