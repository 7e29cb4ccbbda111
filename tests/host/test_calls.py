"""Wrong calls: what is refused, when, and in which words."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm.errors import (
    SymmAxisError,
    SymmStateError,
    SymmTypeError,
    SymmUnsupportedError,
    SymmValueError,
)

OPS = ["reduce_scatter", "all_reduce"]


def trace(op, mesh, x, w, axis="tp", **options):
    call = getattr(jax_symm, f"gemm_{op}")
    f = jax.shard_map(
        lambda x, w: call(x, w, axis, **options),
        mesh=mesh,
        in_specs=(P(None, "tp"), P("tp", None)),
        out_specs=P("tp") if op == "reduce_scatter" else P(),
    )
    return jax.jit(f).lower(x, w)


@pytest.fixture
def operands():
    return jnp.ones((16, 32), jnp.float32), jnp.ones((32, 8), jnp.float32)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("x", "w"),
    [("bfloat16", "float32"), ("float16", "bfloat16"), ("int8", "int8")],
)
def test_dtypes_that_do_not_go(op, x, w, operands, mesh8, open_workspace):
    """C08: at trace, with both dtypes and shapes; the process goes on."""
    workspace = open_workspace(mesh8, max_m=16, n=8)
    for given in (workspace, None):
        with pytest.raises(SymmTypeError) as raised:
            trace(
                op,
                mesh8,
                operands[0].astype(x),
                operands[1].astype(w),
                workspace=given,
            )
        assert x in str(raised.value)
        assert w in str(raised.value)


def test_float64_does_not_go(mesh8):
    """C08."""
    with jax.enable_x64(True):
        x, w = jnp.ones((16, 32), "float64"), jnp.ones((32, 8), "float64")
        with pytest.raises(SymmTypeError, match="float64"):
            trace("all_reduce", mesh8, x, w)


def test_weak_types_do_not_go(mesh8):
    def body(x, w):
        return jax_symm.gemm_all_reduce(jnp.full((4, 4), 1.0), w[:4], "tp")

    f = jax.shard_map(body, mesh=mesh8, in_specs=(P(), P()), out_specs=P())
    with pytest.raises(SymmTypeError, match="x is weakly typed"):
        jax.jit(f)(jnp.ones((8, 8)), jnp.ones((8, 8)))


def test_shapes_that_do_not_fit(operands, mesh8):
    """C08."""
    x, w = operands
    with pytest.raises(SymmValueError, match="contracted dimensions differ"):
        trace("all_reduce", mesh8, x, jnp.ones((40, 8)))
    with pytest.raises(SymmValueError, match="scatter_dimension: got 1"):
        trace("reduce_scatter", mesh8, x, w, scatter_dimension=1)


@pytest.mark.parametrize("op", OPS)
def test_a_call_larger_than_the_workspace(op, operands, mesh8, open_workspace):
    """C09: refused at trace with need and have; the small call after it works."""
    x, w = operands
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    large = jnp.ones((4096, 32), jnp.float32)
    with pytest.raises(SymmValueError, match="needs 131072 bytes, it has 512"):
        trace(op, mesh8, large, w, workspace=workspace)
    y = oracle.run(op, x, w, mesh8, "tp", workspace, path="host")
    np.testing.assert_array_equal(y, np.full((16, 8), 32.0))


@pytest.mark.parametrize("op", OPS)
def test_a_batched_call_larger_than_the_workspace(op, operands, mesh8, open_workspace):
    """What vmap makes of a call that fits is refused before it runs, too."""
    x, w = operands
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    call = getattr(jax_symm, f"gemm_{op}")
    f = jax.shard_map(
        jax.vmap(lambda x, w: call(x, w, "tp", workspace=workspace), (0, None)),
        mesh=mesh8,
        in_specs=(P(None, None, "tp"), P("tp", None)),
        out_specs=P(None, "tp") if op == "reduce_scatter" else P(),
    )
    with pytest.raises(SymmValueError, match="needs 2048 bytes, it has 512"):
        jax.jit(f).lower(jnp.stack([x] * 4), w)


def test_a_transposed_call_larger_than_the_workspace(mesh8, open_workspace):
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    x, w = jnp.ones((16, 64), jnp.float32), jnp.ones((64, 8), jnp.float32)
    gathered = jax.shard_map(
        lambda x, w: jax_symm.all_gather_gemm(x, w, "tp", workspace=workspace),
        mesh=mesh8,
        in_specs=(P("tp", None), P()),
        out_specs=P("tp"),
    )
    gathered(x, w).block_until_ready()
    with pytest.raises(SymmValueError, match="needs 4096 bytes, it has 512"):
        jax.jit(jax.grad(lambda x: gathered(x, w).sum())).lower(x)


def test_capacity_is_in_bytes(mesh8, open_workspace):
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    x, w = jnp.ones((32, 32), jnp.bfloat16), jnp.ones((32, 8), jnp.bfloat16)
    y = oracle.run("all_reduce", x, w, mesh8, "tp", workspace, path="host")
    assert y.shape == (32, 8)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_outside_shard_map(op, axis_type, operands, mesh_of):
    """C18: the text names the axis and says to use shard_map."""
    mesh = mesh_of(axis_type, tp=8)
    call = getattr(jax_symm, f"gemm_{op}")
    with jax.set_mesh(mesh):
        x = jax.device_put(operands[0], P(None, "tp"))
        for run in (jax.jit, lambda f: f):
            with pytest.raises(SymmAxisError, match=r"'tp'.*inside jax.shard_map") as e:
                run(lambda x, w: call(x, w, "tp"))(x, operands[1])
            assert isinstance(e.value, NameError)


def test_no_gather_around_our_call(operands, mesh8, open_workspace):
    """C18."""
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    lowered = trace("reduce_scatter", mesh8, *operands, workspace=workspace)
    text = lowered.compile().as_text()
    assert text.count('custom_call_target="jax_symm.gemm_reduce_scatter.v1"') == 1
    assert "all-gather" not in text


def test_unknown_and_repeated_axes(operands, mesh8, open_workspace):
    """C20."""
    with pytest.raises(SymmAxisError, match="axis 'nope' is not bound"):
        trace("all_reduce", mesh8, *operands, axis="nope")
    with pytest.raises(SymmValueError, match="each axis at most once"):
        trace("all_reduce", mesh8, *operands, axis=("tp", "tp"))
    with pytest.raises(TypeError, match="axis_index_groups"):
        trace("all_reduce", mesh8, *operands, axis_index_groups=[[0, 1]])
    with pytest.raises(SymmValueError, match="the mesh has axes"):
        open_workspace(mesh8, "nope", max_m=1, n=1)


@pytest.mark.parametrize("op", OPS)
def test_the_axis_of_a_vmap(op, operands):
    call = getattr(jax_symm, f"gemm_{op}")
    x, w = operands
    with pytest.raises(SymmAxisError, match=r"the axis_name of a jax.vmap will not do"):
        jax.vmap(lambda x: call(x, w, "i"), axis_name="i")(x[None])


@pytest.mark.parametrize("op", OPS)
def test_forced_paths(op, operands, mesh8, open_workspace):
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    with pytest.raises(SymmStateError, match="path='host' cannot run: no workspace"):
        trace(op, mesh8, *operands, path="host")
    for path in ("peer", "multicast"):
        with pytest.raises(SymmUnsupportedError, match=f"path='{path}' cannot run"):
            trace(op, mesh8, *operands, workspace=workspace, path=path)
    with pytest.raises(SymmValueError, match="path: got 'p2p'"):
        trace(op, mesh8, *operands, path="p2p")


def test_workspace_of_another_axis_or_mesh(operands, mesh8, mesh_of, open_workspace):
    grid = mesh_of(dp=4, tp=2)
    other_axis = open_workspace(grid, "dp", max_m=16, n=8)
    with pytest.raises(
        SymmValueError, match=r"made for axis 'dp', but .* names axis 'tp'"
    ):
        trace("all_reduce", mesh8, *operands, workspace=other_axis)
    other_size = open_workspace(grid, "tp", max_m=16, n=8)
    with pytest.raises(SymmValueError, match="made for 2 ranks, but axis 'tp' has 8"):
        trace("all_reduce", mesh8, *operands, workspace=other_size)
    only_rs = open_workspace(mesh8, max_m=16, n=8, ops=["reduce_scatter"])
    with pytest.raises(SymmValueError, match="create it with 'all_reduce' in ops"):
        trace("all_reduce", mesh8, *operands, workspace=only_rs)
    with pytest.raises(SymmValueError, match="workspace: got str"):
        trace("all_reduce", mesh8, *operands, workspace="tp-0")


def test_same_shape_with_another_device_order(mesh_of, cpus):
    """The axis_index operand is compared with the workspace's rank of the device."""
    x, w = oracle.rank_bits(4, 8, 8, jnp.float32)
    workspace = jax_symm.Workspace(
        mesh_of(tp=4), "tp", max_m=8, n=8, dtype=jnp.float32, timeout_s=60
    )
    turned = mesh_of(tp=4, devices=[cpus[i] for i in (1, 0, 2, 3)])
    with pytest.raises(jax.errors.JaxRuntimeError, match="device order"):
        oracle.run("all_reduce", x, w, turned, "tp", workspace)
    with pytest.raises(SymmStateError, match="device order"):
        workspace.check()
    workspace.close()


def test_devices_that_are_not_in_the_workspace(mesh_of, cpus):
    x, w = oracle.rank_bits(4, 8, 8, jnp.float32)
    with jax_symm.Workspace(
        mesh_of(tp=4), "tp", max_m=8, n=8, dtype=jnp.float32, timeout_s=60
    ) as workspace:
        others = mesh_of(tp=4, devices=cpus[4:8])
        with pytest.raises(
            jax.errors.JaxRuntimeError, match="does not have this device"
        ):
            oracle.run("all_reduce", x, w, others, "tp", workspace)


def test_plan_says_path_and_reason(mesh8, open_workspace):
    workspace = open_workspace(mesh8, max_m=16, n=8)
    x = jax.ShapeDtypeStruct((16, 4), jnp.bfloat16)
    w = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)
    plan = jax_symm.plan("reduce_scatter", x, w, "tp", workspace=workspace)
    assert (plan.path, plan.can_run, plan.should_run) == ("host", True, True)
    assert jax_symm.should_run("all_reduce", x, w, "tp", workspace=workspace)
    assert not jax_symm.can_run(
        "all_reduce", x, w, "tp", workspace=workspace, path="peer"
    )
    large = jax.ShapeDtypeStruct((1024, 4), jnp.bfloat16)
    assert not jax_symm.can_run("all_reduce", large, w, "tp", workspace=workspace)
    with pytest.raises(SymmValueError, match="too small"):
        jax_symm.plan("all_reduce", large, w, "tp", workspace=workspace)
    with jax.set_mesh(mesh8):
        text = jax_symm.explain("all_reduce", x, w, "tp")
    assert text.startswith("all_reduce takes the xla path: no workspace")
    with pytest.raises(SymmAxisError, match="has no size here"):
        jax_symm.plan("all_reduce", x, w, "tp")


def test_without_a_workspace_the_definition_runs(operands, mesh8):
    for op in OPS:
        y = oracle.run(op, *operands, mesh8, "tp", None)
        np.testing.assert_array_equal(y, np.full((16, 8), 32.0))


def test_axes_left_to_the_compiler(operands, mesh_of, open_workspace):
    """Right, and warned of once."""
    mesh = mesh_of(dp=2, tp=4)
    workspace = open_workspace(mesh, max_m=16, n=8, dtype=jnp.float32)
    x, w = operands

    def f():
        return jax.jit(
            jax.shard_map(
                lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace),
                mesh=mesh,
                axis_names={"tp"},
                in_specs=(P(None, "tp"), P("tp", None)),
                out_specs=P(),
            )
        )(x, w)

    jax_symm.ops._surroundings._warn_once.cache_clear()  # another test may have been told
    with pytest.warns(UserWarning, match="leaves the mesh axes dp to the compiler"):
        y = f()
    np.testing.assert_array_equal(y, np.full((16, 8), 32.0))
    np.testing.assert_array_equal(f(), np.full((16, 8), 32.0))


def test_an_explicit_axis_that_is_not_manual(operands, mesh_of):
    mesh = mesh_of(AxisType.Explicit, dp=2, tp=4)
    x = oracle.put(operands[0], mesh, P("dp", "tp"))
    w = oracle.put(operands[1], mesh, P("tp", None))
    with (
        jax.set_mesh(mesh),
        pytest.raises(SymmValueError, match=r"explicit mesh axis 'dp'.*axis_names"),
    ):
        jax.jit(
            jax.shard_map(
                lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp"),
                axis_names={"tp"},
                in_specs=(P(None, "tp"), P("tp", None)),
                out_specs=P(),
            )
        )(x, w)


def test_two_threads_may_call(mesh8, open_workspace):
    """C16: two programs from two threads on one workspace, each with its own data."""
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    failures = []

    def work(sign):
        x, w = oracle.rank_bits(8, 16, 8, jnp.float32)
        call = jax.jit(
            jax.shard_map(
                lambda x, w: jax_symm.gemm_reduce_scatter(
                    x, w, "tp", workspace=workspace, path="host"
                ),
                mesh=mesh8,
                in_specs=(P(None, "tp"), P("tp", None)),
                out_specs=P("tp"),
            )
        )
        for _ in range(50):
            y = np.asarray(call(x * sign, w))
            if not (y == sign * 255).all():
                failures.append(y)

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert oracle.host_calls(workspace) == 800
