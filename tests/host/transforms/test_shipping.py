"""AOT, export, serialised executables, the persistent cache, multi-platform lowering (C23)."""

import os
import pathlib
import pickle
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from _programs import AR_SPEC, host_calls, integers, sharded
from jax import export

import jax_symm

SETUP = """
import os, sys, pickle
os.environ["PJRT_NPROC"] = "64"
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
from jax.sharding import PartitionSpec as P
import jax_symm
mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("tp",))
x = np.arange(16 * 32).reshape(16, 32).astype(np.float32) % 5 - 2
w = np.arange(32 * 24).reshape(32, 24).astype(np.float32) % 7 - 3
def open_workspace(name="shipped"):
    return jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32", name=name)
def program(workspace):
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace, path="host")
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P(None, "tp"), P("tp", None)), out_specs=P(None, None)))
def host_calls(ws):
    return sum(ws.calls().get("host", {}).values())
def check(y):
    np.testing.assert_array_equal(np.asarray(y), x @ w)
"""


def run_fresh(code, *args, **env):
    """Run code after SETUP in a fresh process; its output, or a failure that shows it."""
    done = subprocess.run(
        [sys.executable, "-c", SETUP + textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def operands():
    return integers(0, (16, 32)), integers(1, (32, 24))


def program(mesh, workspace):
    body = lambda x, w: jax_symm.gemm_all_reduce(
        x, w, "tp", workspace=workspace, path="host"
    )
    return jax.jit(sharded(body, mesh, out_specs=AR_SPEC))


def test_lower_compile_call(mesh, workspace):
    x, w = operands()
    compiled = program(mesh, workspace).lower(x, w).compile()
    before = host_calls(workspace)
    np.testing.assert_array_equal(compiled(x, w), np.asarray(x) @ np.asarray(w))
    assert host_calls(workspace) == before + mesh.size


def test_export_needs_the_named_safety_check(mesh, workspace):
    with pytest.raises(ValueError, match="jax_symm.gemm_all_reduce"):
        export.export(program(mesh, workspace))(*operands())


def test_export_round_trip_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers")
    artifact = tmp_path / "program"
    run_fresh(
        """
        from jax import export
        with open_workspace() as ws:
            exported = export.export(program(ws), disabled_checks=jax_symm.export_safety_checks())(x, w)
        open(sys.argv[1], "wb").write(exported.serialize())
        """,
        artifact,
    )
    run_fresh(
        """
        from jax import export
        jax_symm.register_ffi_targets()
        program = jax.jit(export.deserialize(open(sys.argv[1], "rb").read()).call)
        placed = [jax.device_put(a, jax.NamedSharding(mesh, s)) for a, s in ((x, P(None, "tp")), (w, P("tp", None)))]
        compiled = program.lower(*placed).compile()  # before the workspace exists
        try:
            jax.block_until_ready(compiled(*placed))
        except Exception as error:
            assert "FAILED_PRECONDITION" in str(error) and "shipped" in str(error), error
        else:
            raise AssertionError("ran without its workspace")
        with open_workspace() as ws:
            check(compiled(*placed))
            assert host_calls(ws) == 4, ws.calls()
        """,
        artifact,
    )


def test_serialised_executable_in_another_process(tmp_path):
    artifact = tmp_path / "executable"
    run_fresh(
        """
        from jax.experimental import serialize_executable
        with open_workspace() as ws:
            pickle.dump(serialize_executable.serialize(program(ws).lower(x, w).compile()), open(sys.argv[1], "wb"))
        """,
        artifact,
    )
    run_fresh(
        """
        from jax.experimental import serialize_executable
        jax_symm.register_ffi_targets()  # all that loading needs
        compiled = serialize_executable.deserialize_and_load(
            *pickle.load(open(sys.argv[1], "rb")), execution_devices=list(mesh.devices.flat)
        )
        with open_workspace() as ws:
            check(compiled(x, w))
            assert host_calls(ws) == 4, ws.calls()
        """,
        artifact,
    )


CACHED = """
from jax._src import monitoring
events = []
monitoring.register_event_listener(lambda name, **_: events.append(name))
with open_workspace() as ws:
    check(program(ws)(x, w))
    print("calls", host_calls(ws))
print("hits", events.count("/jax/compilation_cache/cache_hits"))
"""


def test_persistent_cache_hit_in_a_fresh_process(tmp_path):
    """The second process loads what the first compiled, and its text holds no address."""
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    assert "calls 4" in run_fresh(CACHED, **env)
    entries = sorted(
        p.name for p in pathlib.Path(tmp_path).iterdir() if "atime" not in p.name
    )
    output = run_fresh(CACHED, **env)
    assert "calls 4" in output
    assert "hits 0" not in output
    assert entries == sorted(
        p.name for p in pathlib.Path(tmp_path).iterdir() if "atime" not in p.name
    )


def test_lowered_text_is_the_same_in_two_processes():
    """Case C23: no address, process id or per-rank value is baked into a program."""
    code = "with open_workspace() as ws: print(program(ws).lower(x, w).as_text())"
    assert run_fresh(code) == run_fresh(code)


def test_multi_platform_export_without_cuda(mesh, workspace):
    """Exported for CPU and CUDA here; the CUDA half carries our call or its xla fallback."""
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace)
    function = jax.jit(sharded(body, mesh, out_specs=AR_SPEC))
    exported = export.export(
        function,
        platforms=("cpu", "cuda"),
        disabled_checks=jax_symm.export_safety_checks(),
    )(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands()))
    assert exported.platforms == ("cpu", "cuda")


def test_pickled_workspace_is_refused(workspace):
    with pytest.raises(TypeError, match="Workspace"):
        pickle.dumps(workspace)
