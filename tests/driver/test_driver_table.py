"""The table of driver functions: what is missing is a status, never a null call."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from fake_cuda.launch import FakeMachine

REPOSITORY = pathlib.Path(__file__).parents[2]


def run(
    machine: FakeMachine, code: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with `native` and `backend` in a fresh process."""
    head = (
        "import os; from jax_symm import _jax_symm as native, errors\n"
        "def make(**kw):\n"
        "  return native.cuda_backend(os.environ['FAKE_CUDA_LIBRARY'], **kw)\n"
    )
    environment = {**os.environ, **machine.environment("table"), **more}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-c", head + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def passes(machine: FakeMachine, code: str, **more: str) -> None:
    done = run(machine, code, **more)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_no_driver(machine: FakeMachine) -> None:
    passes(
        machine,
        "try: native.cuda_backend('/nowhere/libcuda.so.1')\n"
        "except errors.SymmUnsupportedError as e:\n"
        "  assert '/nowhere/libcuda.so.1' in str(e) and e.code == 12\n"
        "else: raise SystemExit(1)",
    )


def test_package_imports_without_a_driver(machine: FakeMachine) -> None:
    passes(
        machine,
        "import jax_symm\n"
        "assert not any('libcuda' in line for line in open('/proc/self/maps'))",
    )


def test_old_driver_lacks_multicast(machine: FakeMachine) -> None:
    """Below CUDA 12.1: peers work, multicast is a status that names the function."""
    passes(
        machine,
        "b = make()\n"
        "assert not b.facts(0).multicast\n"
        "b.create(0, 2 << 20, native.HandleType.POSIX_FD).release()\n"
        "try: b.create_multicast(2, 2 << 20, native.HandleType.POSIX_FD)\n"
        "except errors.SymmUnsupportedError as e:\n"
        "  assert 'no cuMulticastGetGranularity' in str(e) and 'CUDA 12.1' in str(e)\n"
        "else: raise SystemExit(1)",
        FAKE_CUDA_VERSION="12000",
    )


@pytest.mark.parametrize(
    "call",
    [
        "b.create_multicast(2, 2 << 20, native.HandleType.POSIX_FD)",
        "b.multicast_granularity(2)",
    ],
)
def test_forbidden_multicast_is_refused_before_the_driver(
    machine: FakeMachine, call: str
) -> None:
    machine.script(faults=[])
    passes(
        machine,
        "b = make(forbid_multicast=True)\n"
        "assert not b.facts(0).multicast\n"
        f"try: {call}\n"
        "except errors.SymmUnsupportedError: pass\n"
        "else: raise SystemExit(1)",
    )
    called = {name for _, name in machine.report()["trace"]}
    assert not any(name.startswith("cuMulticast") for name in called)


def test_forbidden_multicast_aborts_in_the_table(tmp_path: pathlib.Path) -> None:
    """Whatever reaches a multicast entry of that table ends the process, with a message."""
    source = tmp_path / "abort.cc"
    source.write_text(
        '#include "driver/driver_api.h"\n'
        "using namespace jax_symm::driver;\n"
        "int main(int, char** argv) {\n"
        "  auto api = LoadApi(argv[1], Multicast::kAbort);\n"
        "  if (!api.ok()) return 3;\n"
        "  MemHandle handle = 0;\n"
        "  MulticastProp prop{2, 1 << 21, 1, 0};\n"
        "  switch (argv[2][0]) {\n"
        "    case 'c': (*api)->cuMulticastCreate.function(&handle, &prop); break;\n"
        "    case 'a': (*api)->cuMulticastAddDevice.function(0, 0); break;\n"
        "    case 'b': (*api)->cuMulticastBindMem.function(0, 0, 0, 0, 0, 0); break;\n"
        "    case 'u': (*api)->cuMulticastUnbind.function(0, 0, 0, 0); break;\n"
        "  }\n"
        "}\n"
    )
    sources = ["base/log.cc", "base/status.cc", "driver/driver_api.cc"]
    program = tmp_path / "abort"
    compile_cpp(source, *(REPOSITORY / "ffi" / one for one in sources), out=program)
    machine = FakeMachine()
    try:
        for entry in "cabu":
            done = subprocess.run(
                [program, machine.environment("x")["FAKE_CUDA_LIBRARY"], entry],
                env={**os.environ, **machine.environment("x")},
                capture_output=True,
                text=True,
            )
            assert done.returncode == -6, done
            assert "forbids multicast" in done.stderr
        called = {name for _, name in machine.report()["trace"]}
        assert called == {"cuInit"}
    finally:
        machine.close()


def compile_cpp(
    *sources: pathlib.Path, out: pathlib.Path | None, more: Any = ()
) -> None:
    """Compiles a program, or only checks the sources when `out` is None."""
    subprocess.run(
        [
            os.environ.get("CXX", "g++"),
            *("-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{REPOSITORY / 'ffi'}"),
            *more,
            *map(str, sources),
            *(("-o", str(out), "-ldl") if out else ("-fsyntax-only",)),
        ],
        check=True,
    )


def test_forked_child_leaves_the_driver_alone(machine: FakeMachine) -> None:
    """The child is refused, and its exit frees nothing of the parent's."""
    passes(
        machine,
        "b = make()\n"
        "a = b.create(0, 2 << 20, native.HandleType.POSIX_FD)\n"
        "m = b.map(a, [0]); b.zero(0, m, 0, 8)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "  try: b.granularity(0)\n"
        "  except errors.SymmStateError as e: ok = 'forked' in str(e)\n"
        "  m.release(); a.release(); os._exit(0 if ok else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "assert b.copy_to_host(0, m.address, 8) == bytes(8)\n"
        "m.release(); a.release()",
    )


def test_exit_without_release_is_quiet(machine: FakeMachine) -> None:
    passes(
        machine,
        "b = make()\n"
        "a = b.create(0, 2 << 20, native.HandleType.POSIX_FD)\n"
        "m = b.map(a, [0]); b.zero(0, m, 0, 8)",
    )


def test_abi_is_that_of_cuda_h() -> None:
    """The declarations agree with cuda.h, where there is one."""
    roots = [
        pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include",
        *sorted(pathlib.Path("/usr/local").glob("cuda-1*/include")),
        *(pathlib.Path(p) / "nvidia/cu13/include" for p in sys.path),
    ]
    include = next((root for root in roots if (root / "cuda.h").exists()), None)
    if include is None:
        pytest.skip("no cuda.h on this machine")
    compile_cpp(
        pathlib.Path(__file__).parent / "abi_check.cc",
        out=None,
        more=("-isystem", str(include)),
    )
