"""Builds the dispatch test from its few sources, without the kernels, and runs it."""

import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = [
    "tests/native/dispatch_test.cc",
    "ffi/dispatch/call_hash.cc",
    "ffi/dispatch/config_choice.cc",
    "ffi/dispatch/cost_model.cc",
    "ffi/dispatch/gemm_config.cc",
    "ffi/dispatch/gemm_problem.cc",
    "ffi/dispatch/sm100_spec.cc",
    "ffi/dispatch/sm90_spec.cc",
    "ffi/base/status.cc",
]


def test_choices_and_their_reasons(tmp_path):
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    program = tmp_path / "dispatch_test"
    flags = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Iffi", "-Itests/native"]
    for command in ([compiler, *flags, *SOURCES, "-o", str(program)], [str(program)]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
