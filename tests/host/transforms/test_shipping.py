"""AOT, export, serialised executables, the persistent cache, multi-platform lowering (C23)."""

import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    AR_SPEC,
    OPS,
    OURS,
    OUT_SPEC,
    W_SPEC,
    X_SPEC,
    host_calls,
    operands,
    sharded,
)
from jax import export
from jax.experimental import serialize_executable
from jax.sharding import PartitionSpec as P

import jax_symm

SHARP_BITS = pathlib.Path(__file__).parents[3] / "docs" / "sharp_bits.md"

SETUP = """
import os, sys, pickle
os.environ["PJRT_NPROC"] = "64"
import jax, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
from jax.sharding import PartitionSpec as P
import jax_symm
mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("dp", "tp"))
x = np.arange(16 * 32).reshape(16, 32).astype(np.float32) % 5 - 2
w = np.arange(32 * 24).reshape(32, 24).astype(np.float32) % 7 - 3
def open_workspace(max_m=64):
    return jax_symm.Workspace(mesh, "tp", max_m=max_m, n=24, dtype="float32", name="shipped")
def program(workspace):
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace, path="host")
    body.__name__ = "shipped_program"
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(P("dp", "tp"), P("tp", None)), out_specs=P("dp", None)))
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
            open(sys.argv[1], "wb").write(exported.serialize(vjp_order=1))
        """,
        artifact,
    )
    output = run_fresh(
        """
        from jax import export
        loaded = export.deserialize(open(sys.argv[1], "rb").read()).call
        placed = [jax.device_put(a, jax.NamedSharding(mesh, s)) for a, s in ((x, P("dp", "tp")), (w, P("tp", None)))]
        try:
            jax.jit(loaded).lower(*placed).compile()
        except Exception as error:
            print(error)
        jax_symm.register_ffi_targets()
        compiled = jax.jit(loaded).lower(*placed).compile()  # before the workspace exists
        try:
            jax.block_until_ready(compiled(*placed))
        except Exception as error:
            assert "FAILED_PRECONDITION" in str(error) and "shipped" in str(error), error
        else:
            raise AssertionError("ran without its workspace")
        with open_workspace() as ws:
            check(compiled(*placed))
            assert host_calls(ws) == 4, ws.calls()
            gradients = jax.jit(jax.grad(lambda *a: (loaded(*a) ** 2).sum(), (0, 1)))(*placed)
        jax.tree.map(np.testing.assert_array_equal, gradients, (2 * (x @ w) @ w.T, 2 * x.T @ (x @ w)))
        """,
        artifact,
    )
    quoted = "No FFI handler registered for jax_symm.gemm_all_reduce.v1"
    assert quoted in output
    assert f"> {quoted}" in SHARP_BITS.read_text()


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
from jax import monitoring
events = []
monitoring.register_event_listener(lambda name, **_: events.append(name))
with open_workspace(int(sys.argv[1])) as ws:
    check(program(ws)(x, w))
    print("calls", host_calls(ws))
print("hits", events.count("/jax/compilation_cache/cache_hits"))
print("misses", events.count("/jax/compilation_cache/cache_misses"))
"""


def test_persistent_cache_hit_in_a_fresh_process(tmp_path):
    """A second process loads what the first compiled: no address, size or id is in it.

    A workspace of another capacity takes the same entry; the call is checked against it
    where it is traced, and again where it runs.
    """
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def entries():
        names = sorted(p.name for p in tmp_path.iterdir())
        return [name for name in names if "atime" not in name]

    first = run_fresh(CACHED, 64, **env)
    assert "hits 0" in first
    assert "misses 0" not in first
    stored = entries()
    assert any("shipped_program" in name for name in stored)
    for max_m in (64, 128):
        output = run_fresh(CACHED, max_m, **env)
        assert "calls 4" in output
        assert "misses 0" in output
        assert "hits 0" not in output
        assert entries() == stored
    refused = """
        with open_workspace(4) as ws:
            try:
                program(ws)(x, w)
            except ValueError as error:
                print(error)
    """
    assert "too small" in run_fresh(refused, **env)


def test_lowered_text_is_the_same_in_two_processes():
    """Case C23: no address, process id or per-rank value is baked into a program."""
    code = "with open_workspace() as ws: print(program(ws).lower(x, w).as_text())"
    assert run_fresh(code) == run_fresh(code)


@pytest.mark.parametrize("op", OPS)
def test_multi_platform_export_without_cuda(op, mesh, workspace):
    """Exported for CPU and CUDA here: our call for the one, XLA's for the other."""
    body = lambda x, w: OURS[op](x, w, "tp", workspace=workspace)
    function = jax.jit(sharded(body, mesh, out_specs=OUT_SPEC[op]))
    exported = export.export(
        function,
        platforms=("cpu", "cuda"),
        disabled_checks=jax_symm.export_safety_checks(),
    )(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands()))
    assert exported.platforms == ("cpu", "cuda")
    text = exported.mlir_module()
    assert text.count(f"@jax_symm.{op}.v1") == 1
    assert f"stablehlo.{op.removeprefix('gemm_')}" in text
    pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers")
    loaded = export.deserialize(exported.serialize(vjp_order=1)).call
    specs = (X_SPEC, W_SPEC)
    x, w = (
        jax.device_put(a, jax.NamedSharding(mesh, s))
        for a, s in zip(operands(), specs, strict=True)
    )
    before = host_calls(workspace)
    np.testing.assert_array_equal(jax.jit(loaded)(x, w), np.asarray(x) @ np.asarray(w))
    assert host_calls(workspace) == before + mesh.size
    gradient = lambda f: jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.jit(gradient(loaded))(x, w),
        gradient(lambda x, w: x @ w)(*operands()),
    )


@pytest.mark.parametrize("op", OPS)
def test_lowered_for_cuda_alone(op, mesh):
    """On a machine without CUDA, before any workspace is there."""
    body = lambda x, w: OURS[op](x, w, "tp")
    function = jax.jit(sharded(body, mesh, out_specs=OUT_SPEC[op]))
    text = function.trace(*operands()).lower(lowering_platforms=("cuda",)).as_text()
    assert f"stablehlo.{op.removeprefix('gemm_')}" in text


@pytest.mark.requires("kernels")
@pytest.mark.parametrize("op", OPS)
def test_kernels_lowered_without_cuda(op, mesh, workspace):
    """The program of GPUs: one call, also of a batch, its operands row-major; on CPU lax."""
    on_gpus = object.__new__(jax_symm.Workspace)
    on_gpus.spec = dataclasses.replace(
        workspace.spec, platform="gpu", capability="9.0", capacity_bytes=2**30
    )
    body = lambda x, w: OURS[op](x, w, "tp", workspace=on_gpus)
    function = jax.jit(sharded(body, mesh, out_specs=OUT_SPEC[op]))
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((8192, 8192),) * 2]
    batch = jax.ShapeDtypeStruct((2, 8192, 8192), jnp.bfloat16)
    batched = jax.jit(jax.vmap(function, (0, None)))
    for traced, rank in (
        (function.trace(*shapes), 2),
        (batched.trace(batch, shapes[1]), 3),
    ):
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        (call,) = (line for line in text.splitlines() if f"@jax_symm.{op}.v1" in line)
        x_layout = ", ".join(map(str, reversed(range(rank))))
        assert f"operand_layouts = [dense<[{x_layout}]>" in call
        assert "dense<[1, 0]> : tensor<2xindex>, dense<> " in call
        assert "stablehlo.transpose" not in text
    exported = export.export(
        function,
        platforms=("cpu", "cuda"),
        disabled_checks=jax_symm.export_safety_checks(),
    )(*shapes)
    assert exported.mlir_module().count(f"@jax_symm.{op}.v1") == 1
    assert f"stablehlo.{op.removeprefix('gemm_')}" in exported.mlir_module()


def test_a_symbolic_size_is_refused_in_words(mesh, workspace):
    (rows,) = export.symbolic_shape("rows")
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((rows, 32), (32, 24))]
    for given in (workspace, None):
        for call in (
            jax_symm.gemm_all_reduce,
            jax_symm.gemm_reduce_scatter,
            jax_symm.all_gather_gemm,
        ):
            body = lambda x, w, call=call, ws=given: call(x, w, "tp", workspace=ws)
            function = sharded(body, mesh, out_specs=P("tp"))
            with pytest.raises(ValueError, match="rows is a symbol, .* each size"):
                export.export(jax.jit(function))(*shapes)


def test_what_is_serialised_does_not_take_the_workspace(mesh, workspace):
    """A workspace cannot leave its process; the text says how a program finds it."""
    function = jax.jit(lambda ws, x, w: program(mesh, ws)(x, w))
    compiled = function.lower(workspace, *operands()).compile()
    _, in_tree, _ = serialize_executable.serialize(compiled)
    for held in (workspace, in_tree):
        with pytest.raises(
            TypeError, match=r"Workspace\('.*'\) cannot be pickled.*close"
        ):
            pickle.dumps(held)
    checks = jax_symm.export_safety_checks()
    exported = export.export(function, disabled_checks=checks)(workspace, *operands())
    with pytest.raises(ValueError, match=r"Cannot serialize PyTreeDef.*Workspace"):
        exported.serialize()
