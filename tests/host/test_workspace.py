"""The life of a workspace: names, equality, contexts, closing, faults."""

import gc
import os
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm import config
from jax_symm import workspace as workspace_module
from jax_symm.errors import (
    SymmStateError,
    SymmTypeError,
    SymmUnavailableError,
    SymmValueError,
)

SIZES = {"max_m": 16, "n": 8, "dtype": jnp.float32}


def program(mesh, workspace, op="all_reduce"):
    call = getattr(jax_symm, f"gemm_{op}")
    return jax.jit(
        jax.shard_map(
            lambda x, w: call(x, w, "tp", workspace=workspace),
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=P() if op == "all_reduce" else P("tp"),
        )
    )


@pytest.fixture
def bits():
    return oracle.rank_bits(8, 16, 8, jnp.float32)


def test_default_names_are_the_first_that_are_free(mesh8, mesh_of, open_workspace):
    first = open_workspace(mesh8, **SIZES)
    second = open_workspace(mesh8, **SIZES)
    assert (first.name, second.name) == ("tp-0", "tp-1")
    first.close()
    assert open_workspace(mesh8, **SIZES).name == "tp-0"
    grid = mesh_of(dp=2, tp=4)
    assert open_workspace(grid, ("dp", "tp"), **SIZES).name == "dp.tp-0"


def test_an_open_name_is_refused(mesh8, open_workspace):
    open_workspace(mesh8, name="mine", **SIZES)
    with pytest.raises(SymmStateError, match=r"Workspace\('mine'\): .*already open"):
        open_workspace(mesh8, name="mine", **SIZES)


def test_equality_is_by_facts(mesh8, mesh_of, cpus, open_workspace):
    first = open_workspace(mesh8, name="a", **SIZES)
    first.close()
    again = open_workspace(mesh8, name="a", **SIZES)
    assert first == again
    assert hash(first) == hash(again)
    assert again != open_workspace(mesh8, name="b", **SIZES)
    again.close()
    assert again != open_workspace(mesh8, name="a", **{**SIZES, "max_m": 24})
    turned = mesh_of(tp=8, devices=cpus[::-1])
    assert open_workspace(turned, name="c", **SIZES) != open_workspace(
        mesh8, name="d", **SIZES
    )


def test_sm_margin_is_a_fact_without_effect_here(mesh8, bits, open_workspace):
    workspace = open_workspace(mesh8, sm_margin=5000, **SIZES)
    assert "sm_margin=5000" in repr(workspace)
    assert workspace.spec.sm_margin == 5000
    np.testing.assert_array_equal(
        program(mesh8, workspace)(*bits), np.full((16, 8), 255.0)
    )
    assert "sm_margin" not in repr(open_workspace(mesh8, **SIZES))


def test_it_is_a_static_pytree_node(mesh8, bits, open_workspace):
    workspace = open_workspace(mesh8, **SIZES)
    assert jax.tree.leaves({"w": workspace}) == []

    @jax.jit
    def f(module, x, w):
        return jax.shard_map(
            lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=module["ws"]),
            mesh=mesh8,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=P(),
        )(x, w)

    np.testing.assert_array_equal(f({"ws": workspace}, *bits), np.full((16, 8), 255))
    other = open_workspace(mesh8, **SIZES)
    f({"ws": other}, *bits).block_until_ready()
    assert oracle.host_calls(other) == 8
    assert f._cache_size() == 2


def test_use_workspace(mesh8, mesh_of, bits, open_workspace):
    f = program(mesh8, None)
    np.testing.assert_array_equal(f(*bits), np.full((16, 8), 255.0))
    first, second = (open_workspace(mesh8, **SIZES) for _ in range(2))
    unrelated = open_workspace(mesh_of(dp=2, tp=4), "dp", **SIZES)
    with jax_symm.use_workspace(first):
        f(*bits).block_until_ready()
        with jax_symm.use_workspace(second), jax_symm.use_workspace(unrelated):
            f(*bits).block_until_ready()
        f(*bits).block_until_ready()
    f(*bits).block_until_ready()
    assert [oracle.host_calls(w) for w in (first, second, unrelated)] == [16, 8, 0]
    with pytest.raises(SymmTypeError, match="use_workspace: got str"):
        jax_symm.use_workspace("tp-0")


def test_use_workspace_is_of_one_thread(mesh8, bits, open_workspace):
    workspace = open_workspace(mesh8, **SIZES)
    f = program(mesh8, None)
    with jax_symm.use_workspace(workspace):
        other = threading.Thread(target=lambda: f(*bits).block_until_ready())
        other.start()
        other.join()
        assert oracle.host_calls(workspace) == 0
        f(*bits).block_until_ready()
    assert oracle.host_calls(workspace) == 8


def test_closed_then_missing_then_open_again(mesh8, bits):
    """No recompilation when the same facts come back; clear errors in between."""
    workspace = jax_symm.Workspace(mesh8, "tp", name="again", timeout_s=60, **SIZES)
    f = program(mesh8, workspace)
    f(*bits).block_until_ready()
    workspace.close()
    with pytest.raises(jax.errors.JaxRuntimeError, match="'again' is closed"):
        f(*bits).block_until_ready()
    with jax_symm.Workspace(mesh8, "tp", name="again", timeout_s=60, **SIZES) as other:
        np.testing.assert_array_equal(f(*bits), np.full((16, 8), 255.0))
        assert oracle.host_calls(other) == 8
    assert f._cache_size() == 1


def test_opened_again_smaller(mesh8, bits):
    workspace = jax_symm.Workspace(mesh8, "tp", name="less", timeout_s=60, **SIZES)
    f = program(mesh8, workspace)
    f(*bits).block_until_ready()
    workspace.close()
    with (
        jax_symm.Workspace(mesh8, "tp", name="less", max_m=8, n=8, timeout_s=60),
        pytest.raises(jax.errors.JaxRuntimeError, match=r"FAILED_PRECONDITION.*512"),
    ):
        f(*bits).block_until_ready()


def test_compiled_before_it_exists(mesh8, bits):
    with jax_symm.Workspace(mesh8, "tp", name="later", timeout_s=60, **SIZES) as old:
        compiled = program(mesh8, old).lower(*bits).compile()
    x, w = (
        jax.device_put(a, s)
        for a, s in zip(bits, compiled.input_shardings[0], strict=True)
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="'later' is closed"):
        compiled(x, w).block_until_ready()
    with jax_symm.Workspace(mesh8, "tp", name="later", timeout_s=60, **SIZES):
        np.testing.assert_array_equal(compiled(x, w), np.full((16, 8), 255.0))


def test_created_under_a_trace(mesh8):
    @jax.jit
    def f(x):
        jax_symm.Workspace(mesh8, "tp", **SIZES)
        return x

    with pytest.raises(SymmStateError, match="called while JAX is tracing"):
        f(jnp.ones(3))


def test_close_waits_for_what_was_launched(mesh8, bits):
    for _ in range(5):
        workspace = jax_symm.Workspace(mesh8, "tp", timeout_s=60, **SIZES)
        f = program(mesh8, workspace)
        launched = [f(*bits) for _ in range(20)]
        workspace.close()
        workspace.close()
        assert workspace.closed
        for y in launched:
            np.testing.assert_array_equal(y, np.full((16, 8), 255.0))
    with pytest.raises(SymmStateError, match="is closed"):
        workspace.check()


def test_the_last_reference_closes(mesh8, bits):
    workspace = jax_symm.Workspace(mesh8, "tp", name="dropped", timeout_s=60, **SIZES)
    f = program(mesh8, workspace)
    y = f(*bits).block_until_ready()
    spec = workspace.spec
    del workspace, f
    jax.clear_caches()
    gc.collect()
    np.testing.assert_array_equal(y, np.full((16, 8), 255.0))
    with jax_symm.Workspace(
        mesh8, "tp", name="dropped", timeout_s=60, **SIZES
    ) as again:
        assert again.spec == spec


def mapped_bytes():
    """Bytes of our memory that this process maps."""
    total = 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "memfd:jax_symm" in line:
                low, high = (int(a, 16) for a in line.split()[0].split("-"))
                total += high - low
    return total


def test_nothing_is_left_mapped_or_open(mesh8):
    jax_symm.Workspace(mesh8, "tp", **SIZES).close()
    gc.collect()
    mapped, fds = mapped_bytes(), len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(20):
        workspace = jax_symm.Workspace(mesh8, "tp", max_m=4096, n=64)
        assert mapped_bytes() >= mapped + 8 * workspace.nbytes
        workspace.close()
        assert mapped_bytes() <= mapped  # while the object is still there
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert threading.active_count() <= threads + 1


def test_calls_counts_per_path_group_and_rank(mesh_of, open_workspace):
    mesh = mesh_of(dp=2, tp=4)
    workspace = open_workspace(mesh, **SIZES)
    x, w = oracle.rank_bits(4, 16, 8, jnp.float32)
    for _ in range(3):
        oracle.run("all_reduce", x, w, mesh, "tp", workspace)
    wanted = {(g, r): 3 for g in range(2) for r in range(4)}
    assert workspace.calls() == {"host": wanted}
    workspace.check()


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"max_m": -1}, SymmValueError, "max_m: got -1"),
        ({"n": 2.5}, SymmValueError, "n: got 2.5"),
        ({"n": True}, SymmValueError, "n: got True"),
        ({"dtype": jnp.int8}, SymmTypeError, "int8"),
        ({"dtype": "no"}, SymmTypeError, "dtype: got no"),
        ({"ops": ()}, SymmValueError, "ops: got ()"),
        ({"ops": ("mean",)}, SymmValueError, "ops: got ('mean',)"),
        ({"ops": None}, SymmValueError, "ops: got None"),
        ({"multicast": "yes"}, SymmValueError, "multicast: got 'yes'"),
        ({"name": ""}, SymmValueError, "name: got ''"),
        ({"name": "x" * 129}, SymmValueError, "expected a text of 1 to 128 characters"),
        ({"timeout_s": 0}, SymmValueError, "timeout_s: got 0"),
        ({"sm_margin": -1}, SymmValueError, "sm_margin: got -1, expected an integer"),
        ({"sm_margin": 1.5}, SymmValueError, "sm_margin: got 1.5"),
        ({"timeout_s": "1"}, SymmValueError, "timeout_s: got '1'"),
        ({"max_m": 2**62}, SymmValueError, f"got {2**62 * 8 * 4} bytes, expected at"),
        ({"max_m": np.int64(2**44)}, SymmValueError, "expected at most"),
    ],
)
def test_wrong_arguments(changes, error, text, mesh8):
    with pytest.raises(error) as raised:
        jax_symm.Workspace(mesh8, "tp", **{**SIZES, **changes})
    assert text in str(raised.value)


def test_mesh_of_set_mesh(mesh8, open_workspace):
    with jax.set_mesh(mesh8):
        assert open_workspace(None, "tp", **SIZES).spec.world_size == 8
    with pytest.raises(SymmValueError, match="mesh: got"):
        jax_symm.Workspace(None, "tp", **SIZES)
    with pytest.raises(SymmValueError, match="axis_name: got None"):
        jax_symm.Workspace(mesh8, **SIZES)


def test_sizes_may_be_of_numpy(mesh8, open_workspace):
    sizes = {"max_m": np.int64(16), "n": np.int32(8), "dtype": jnp.float32}
    workspace = open_workspace(mesh8, name="numpy", **sizes)
    workspace.close()
    assert workspace == open_workspace(mesh8, name="numpy", **SIZES)


def test_one_time_out_for_the_whole_of_close(mesh8, monkeypatch):
    """What waiting for the devices took is not waited for again."""
    workspace = jax_symm.Workspace(mesh8, "tp", timeout_s=60, **SIZES)
    deadlines = []

    class Native:
        def close(self, deadline_ns, native=workspace._native):
            deadlines.append(deadline_ns)
            native.close(deadline_ns)

    def drain(devices, timeout_s):
        assert timeout_s <= 60
        time.sleep(0.2)

    monkeypatch.setattr(workspace_module, "drain", drain)
    workspace._native = Native()
    workspace.close()
    (deadline_ns,) = deadlines
    assert 0 < deadline_ns <= 60e9 - 0.2e9


def test_policies_of_multicast(mesh8, monkeypatch, open_workspace):
    assert "no multicast" in open_workspace(mesh8, **SIZES).spec.no_multicast[0]
    never = open_workspace(mesh8, multicast="never", **SIZES)
    assert "never" in never.spec.no_multicast[0]
    only_rs = open_workspace(mesh8, ops=["reduce_scatter"], **SIZES)
    assert only_rs.spec.no_multicast[0]
    with pytest.raises(SymmUnavailableError, match="multicast"):
        open_workspace(mesh8, multicast="require", **SIZES)


def test_the_time_out_names_the_missing_ranks(cpus):
    """A rank that never comes: launched on one device of two."""
    mesh = jax.sharding.Mesh(np.asarray(cpus[:2]), ("tp",))
    alone = jax.sharding.Mesh(np.asarray(cpus[:1]), ("tp",))
    workspace = jax_symm.Workspace(mesh, "tp", timeout_s=3, **SIZES)
    x, w = oracle.rank_bits(2, 16, 8, jnp.float32)

    def body(x, w):
        call = jax_symm.gemm_all_reduce
        return jax.lax.cond(
            jax.lax.axis_index("tp") == 0,
            lambda: call(x, w, "tp", workspace=workspace),
            lambda: x @ w,
        )

    f = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=P("tp"),
            check_vma=False,
        )
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="DEADLINE_EXCEEDED") as raised:
        jax.block_until_ready(f(x, w))
    assert "rank 1 (process 0, cpu:1)" in str(raised.value)
    with pytest.raises(TimeoutError, match="rank 1"):
        workspace.check()
    with pytest.raises(jax.errors.JaxRuntimeError, match="rank 1"):
        jax.block_until_ready(f(x, w))
    workspace.close()
    with jax_symm.Workspace(alone, "tp", timeout_s=60, **SIZES) as again:
        x, w = oracle.rank_bits(1, 16, 8, jnp.float32)
        y = oracle.run("all_reduce", x, w, alone, "tp", again, path="host")
    np.testing.assert_array_equal(y, np.ones((16, 8)))


def test_the_path_setting_of_the_environment(mesh8, bits, open_workspace, monkeypatch):
    workspace = open_workspace(mesh8, **SIZES)
    monkeypatch.setenv("JAX_SYMM_PATH", "xla")
    config.settings.cache_clear()
    try:
        y = program(mesh8, workspace)(*bits)
        np.testing.assert_array_equal(y, np.full((16, 8), 255.0))
    finally:
        monkeypatch.undo()
        config.settings.cache_clear()
    assert oracle.host_calls(workspace) == 0


def test_export_names_our_targets():
    names = [str(check) for check in jax_symm.export_safety_checks()]
    assert any("jax_symm.gemm_reduce_scatter.v1" in name for name in names)
    assert any("jax_symm.gemm_all_reduce.v1" in name for name in names)
