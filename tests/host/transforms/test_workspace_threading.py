"""The ways in which a workspace reaches an op, and what a change of workspace does."""

import copy
import functools
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    AR_SPEC,
    OPS,
    OURS,
    X_SPEC,
    host_calls,
    integers,
    mesh_of,
    operands,
    sharded,
)

import jax_symm
from jax_symm.ops import _lowering


def product():
    x, w = operands()
    return np.asarray(x) @ np.asarray(w)


def all_reduce(mesh, workspace=None, **options):
    body = lambda x, w: jax_symm.gemm_all_reduce(
        x, w, "tp", workspace=workspace, **options
    )
    return sharded(body, mesh, out_specs=AR_SPEC)


def open_one(mesh, **options):
    return jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32", **options)


def test_argument_of_jit_grad_and_scan(mesh, workspace):
    x, w = operands()
    function = jax.jit(lambda ws, x, w: all_reduce(mesh, ws)(x, w))
    np.testing.assert_array_equal(function(workspace, x, w), product())
    loss = lambda x, ws: jnp.sum(all_reduce(mesh, ws)(x, w) ** 2)
    np.testing.assert_array_equal(
        jax.jit(jax.grad(loss))(x, workspace),
        jax.grad(lambda x: jnp.sum((x @ w) ** 2))(x),
    )
    carry, _ = jax.lax.scan(
        lambda c, _: (c, all_reduce(mesh, c[0])(x, w).sum()), (workspace, 0), None, 2
    )
    assert carry[0] == workspace


def test_no_leaves(workspace):
    leaves, structure = jax.tree.flatten({"layer": workspace, "w": 1.0})
    assert leaves == [1.0]
    assert jax.tree.unflatten(structure, leaves)["layer"] is workspace
    assert jax.tree.map(lambda x: x, workspace) is workspace
    again = jax.tree.structure({"layer": workspace, "w": 2.0})
    assert (again, hash(again)) == (structure, hash(structure))


def test_copies_of_a_module_share_the_workspace(mesh):
    """A copy that closed the memory under the original would be worse than none."""
    with open_one(mesh) as workspace:
        layer = {"w": np.ones(3), "workspace": workspace}
        for copied in (copy.copy(layer), copy.deepcopy(layer)):
            assert copied["workspace"] is workspace
        assert copy.copy(workspace) is workspace
        del copied
        gc.collect()
        np.testing.assert_array_equal(
            all_reduce(mesh, workspace)(*operands()), product()
        )


def test_other_carriers_of_a_workspace(mesh, workspace):
    """Static arguments, shard_map's own arguments, custom_vjp, remat, loops."""
    x, w = operands()
    direct = lambda ws, x, w: all_reduce(mesh, ws, path="host")(x, w)
    static = jax.jit(lambda x, w, ws: direct(ws, x, w), static_argnames="ws")
    np.testing.assert_array_equal(static(x, w, ws=workspace), product())
    inner = lambda ws, x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=ws)
    mapped = sharded(inner, mesh, (jax.P(), X_SPEC, jax.P("tp", None)), AR_SPEC)
    np.testing.assert_array_equal(jax.jit(mapped)(workspace, x, w), product())
    batched = jax.vmap(direct, (None, 0, None))
    np.testing.assert_array_equal(batched(workspace, x[None], w)[0], product())
    remat = jax.checkpoint(direct)
    gradient = jax.jit(jax.grad(lambda ws, x: jnp.sum(remat(ws, x, w)), argnums=1))
    np.testing.assert_array_equal(gradient(workspace, x), jnp.ones((16, 24)) @ w.T)
    branch = jax.lax.cond(
        True, direct, lambda ws, x, w: direct(ws, 2 * x, w), workspace, x, w
    )
    np.testing.assert_array_equal(branch, product())

    @jax.custom_vjp
    def doubled(ws, x):
        return direct(ws, x, w)

    doubled.defvjp(
        lambda ws, x: (doubled(ws, x), ws), lambda ws, ct: (ws, 2 * ct @ w.T)
    )
    gradient = jax.grad(lambda x: jnp.sum(doubled(workspace, x)))(x)
    np.testing.assert_array_equal(gradient, 2 * jnp.ones((16, 24)) @ w.T)


def test_one_inner_jit_under_several_meshes_and_workspaces(mesh):
    """Its cache is keyed by the mesh around it and by what use_workspace has set."""
    x, w = operands()
    inner = jax.jit(lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", path="host"))
    pair = mesh_of((2,))
    with open_one(mesh) as four, open_one(pair) as two:
        for m, workspace in ((mesh, four), (pair, two), (mesh, four)):
            with jax_symm.use_workspace(workspace):
                function = jax.jit(sharded(inner, m, out_specs=AR_SPEC))
                np.testing.assert_array_equal(function(x, w), product())
        assert (host_calls(four), host_calls(two)) == (8, 2)


def test_use_workspace_inside_a_trace(mesh, workspace):
    x, w = operands()
    context = jax_symm.use_workspace(workspace)

    def body(x, w):
        with context:
            return jax_symm.gemm_all_reduce(x, w, "tp", path="host")

    function = sharded(body, mesh, out_specs=AR_SPEC)
    np.testing.assert_array_equal(jax.jit(function)(x, w), product())
    jax.jit(jax.grad(lambda x: jnp.sum(function(x, w) ** 2)))(x)


def test_the_pullback_keeps_the_workspace_of_the_call(mesh, workspace):
    """Also when it runs after use_workspace has ended."""
    x, w = integers(0, (16, 8)), integers(1, (8, 16))
    gather = lambda x, w: jax_symm.all_gather_gemm(x, w, "tp")
    specs = (jax.P("tp", None), jax.P(None, "tp"))
    with jax_symm.use_workspace(workspace):
        y, pullback = jax.vjp(sharded(gather, mesh, specs, jax.P(None, "tp")), x, w)
    before = host_calls(workspace)
    dx, _ = jax.block_until_ready(pullback(y))
    np.testing.assert_array_equal(dx, np.asarray(y) @ np.asarray(w).T)
    assert host_calls(workspace) == before + mesh.size


def test_use_workspace_is_part_of_the_jit_key(mesh):
    x, w = operands()
    traces = []

    @jax.jit
    def function(x, w):
        traces.append(1)
        return all_reduce(mesh)(x, w)

    np.testing.assert_array_equal(function(x, w), product())
    with open_one(mesh) as first, open_one(mesh) as second:
        for workspace in (first, second, first):
            with jax_symm.use_workspace(workspace):
                np.testing.assert_array_equal(function(x, w), product())
        assert len(traces) == 3, "without, first, second; first again is cached"
        assert host_calls(first) == 2 * mesh.size
        assert host_calls(second) == mesh.size


def test_a_rebound_argument_retraces(mesh):
    x, w = operands()
    traces = []

    @jax.jit
    def function(ws, x, w):
        traces.append(1)
        return all_reduce(mesh, ws)(x, w)

    with open_one(mesh, name="a") as first, open_one(mesh, name="b") as second:
        for workspace in (first, second, first):
            np.testing.assert_array_equal(function(workspace, x, w), product())
    assert len(traces) == 2


@pytest.mark.parametrize("op", OPS)
def test_absent_workspace_takes_the_xla_path(op, mesh):
    x, w = operands()
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(16, 8), (8, 24)]]
    with jax.set_mesh(mesh):
        plan = jax_symm.plan(op.removeprefix("gemm_"), *shapes, "tp")
    assert plan.path == "xla"
    assert "workspace" in plan.reason
    out = jax.P("tp", None) if op == "gemm_reduce_scatter" else AR_SPEC
    function = sharded(lambda x, w: OURS[op](x, w, "tp"), mesh, out_specs=out)
    np.testing.assert_array_equal(jax.jit(function)(x, w), product())
    assert "custom_call @jax_symm" not in jax.jit(function).lower(x, w).as_text()


def test_the_reason_for_xla_is_logged_once(mesh, caplog):
    _lowering._log_fallback.cache_clear()  # another test may have been told
    with caplog.at_level("INFO", logger="jax_symm"):
        for scale in (1, 2):
            jax.jit(lambda x, w, s=scale: all_reduce(mesh)(s * x, w))(*operands())
    assert len(caplog.messages) == 1
    assert "all_reduce takes the xla path: no workspace" in caplog.messages[0]


def test_workspace_of_another_axis_or_mesh(mesh, workspace):
    x, w = operands()
    other = mesh_of(names=("model",))
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "model", workspace=workspace)
    specs = (jax.P(None, "model"), jax.P("model", None))
    with pytest.raises(ValueError, match="tp.*model|model.*tp"):
        jax.jit(sharded(body, other, specs, AR_SPEC))(x, w)


def test_same_shape_other_device_order(mesh):
    """The axis_index operand catches a mesh that permutes the workspace's devices."""
    x, w = operands()
    permuted = mesh_of(devices=[jax.devices()[i] for i in (1, 0, 2, 3)])
    with open_one(mesh) as workspace, pytest.raises(Exception, match="device order"):
        jax.block_until_ready(
            jax.jit(all_reduce(permuted, workspace, path="host"))(x, w)
        )


def test_created_under_a_trace(mesh):
    with pytest.raises(RuntimeError, match="trace"):
        jax.jit(lambda x: (open_one(mesh), x)[1])(1.0)


def test_two_workspaces_in_one_program(mesh):
    x, w = operands()
    with open_one(mesh) as first, open_one(mesh) as second:
        body = lambda x, w: (
            all_reduce_inside(x, w, first) - all_reduce_inside(2 * x, w, second)
        )
        y = jax.jit(sharded(body, mesh, out_specs=AR_SPEC))(x, w)
        np.testing.assert_array_equal(y, -product())
        assert host_calls(first) == host_calls(second) == mesh.size


def all_reduce_inside(x, w, workspace):
    return jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace, path="host")


def test_closed_and_created_again_under_the_same_name(mesh):
    """Same capacity: right without recompilation. Smaller, or none: a clear error."""
    x, w = operands()
    with open_one(mesh, name="again") as workspace:
        compiled = (
            jax.jit(all_reduce(mesh, workspace, path="host")).lower(x, w).compile()
        )
        np.testing.assert_array_equal(compiled(x, w), product())
    with pytest.raises(Exception, match=r"FAILED_PRECONDITION.*again"):
        jax.block_until_ready(compiled(x, w))
    with open_one(mesh, name="again") as second:
        # Other data than before: what the first memory held would be wrong.
        np.testing.assert_array_equal(compiled(3 - x, w), (3 - x) @ np.asarray(w))
        assert host_calls(second) == mesh.size
    small = jax_symm.Workspace(mesh, "tp", max_m=4, n=8, dtype="float32", name="again")
    with (
        small,
        pytest.raises(
            Exception, match=r"FAILED_PRECONDITION.*needs 1536 bytes.*capacity is 128"
        ),
    ):
        jax.block_until_ready(compiled(x, w))


def test_a_kept_result_outlives_the_workspace(mesh):
    """Case C26: results never alias symmetric memory."""
    x, w = operands()
    with open_one(mesh) as workspace:
        function = jax.jit(all_reduce(mesh, workspace, path="host"))
        kept = function(x, w)
        view = np.from_dlpack(kept.addressable_shards[0].data)
        for scale in range(2, 6):
            jax.block_until_ready(function(scale * x, w))
    with open_one(mesh, name=workspace.name):
        for scale in range(2, 6):
            jax.block_until_ready(function(scale * x, w))
        np.testing.assert_array_equal(view, product())
    np.testing.assert_array_equal(view, product())


@pytest.mark.parametrize("loop", ["python", "fori_loop"])
def test_donation_and_loop_carry(loop, mesh, workspace):
    """Case C26: x + mar(x, w), ten steps, the input donated; the first result is kept."""
    x, w = integers(0, (16, 16)), integers(1, (16, 16))
    expected = [np.asarray(x)]
    for _ in range(10):
        expected.append(np.sign(expected[-1] + expected[-1] @ np.asarray(w)))

    def body(x, w):
        y = all_reduce_inside(x, w, workspace)
        width = y.shape[1] // 4
        mine = jax.lax.dynamic_slice_in_dim(
            y, jax.lax.axis_index("tp") * width, width, 1
        )
        return jnp.sign(x + mine)

    function = sharded(body, mesh, out_specs=X_SPEC)
    placed = jax.device_put(x, jax.NamedSharding(mesh, X_SPEC))
    if loop == "fori_loop":
        many = lambda x, w: jax.lax.fori_loop(0, 10, lambda _, c: function(c, w), x)
        donated = placed
        placed = jax.jit(many, donate_argnums=0)(placed, w)
    else:
        step = jax.jit(function, donate_argnums=0)
        for i in range(10):
            donated, placed = placed, step(placed, w)
            if i == 0:
                kept = jnp.copy(placed)
        np.testing.assert_array_equal(kept, expected[1])
    np.testing.assert_array_equal(placed, expected[10])
    assert donated.is_deleted()


@pytest.mark.parametrize("op", OPS)
def test_operands_that_xla_would_transpose(op, mesh, workspace):
    """Case C05: layouts are pinned, so a transposed producer costs a copy, not a wrong answer."""
    values = np.arange(24 * 64).reshape(24, 64) % 5 - 2
    wide = np.arange(16 * 128).reshape(16, 128) % 7 - 3
    x, w = jnp.asarray(wide, jnp.float32), jnp.asarray(values, jnp.float32)

    def body(x, w_t):
        return OURS[op](x[:, ::2], w_t.T, "tp", workspace=workspace, path="host")

    out = jax.P("tp", None) if op == "gemm_reduce_scatter" else AR_SPEC
    function = jax.jit(sharded(body, mesh, (X_SPEC, X_SPEC), out))
    # each rank takes every other column of its own x shard
    shards = wide.reshape(16, 4, 32)[:, :, ::2].reshape(16, 64)
    np.testing.assert_array_equal(function(x, w), shards @ values.T)
    text = function.lower(x, w).compile().as_text()
    (call,) = (line for line in text.splitlines() if f"jax_symm.{op}.v1" in line)
    rows = 4 if op == "gemm_reduce_scatter" else 16
    assert f"= f32[{rows},24]{{1,0}} custom-call(" in call
    assert "operand_layout_constraints={f32[16,24]{1,0}, s32[]}" in call


@pytest.mark.parametrize("op", OPS)
def test_neighbours_that_prefer_another_layout(op, mesh, workspace):
    """The product and the result are wanted transposed around the call: still row-major."""
    x, w = integers(0, (16, 32)), integers(1, (32, 24))

    def body(x, w):
        call = functools.partial(OURS[op], workspace=workspace, path="host")
        y = call(jnp.swapaxes(jnp.tanh(x.T), 0, 1), w, "tp")
        return jnp.cumsum(y.T, axis=1)

    out = jax.P(None, "tp") if op == "gemm_reduce_scatter" else AR_SPEC
    function = jax.jit(sharded(body, mesh, out_specs=out))
    y = np.tanh(np.asarray(x)) @ np.asarray(w)
    blocks = np.split(y, 4) if op == "gemm_reduce_scatter" else [y]
    wanted = np.concatenate([np.cumsum(block, axis=0) for block in blocks]).T
    np.testing.assert_allclose(function(x, w), wanted, rtol=1e-5, atol=1e-5)
    text = function.lower(x, w).compile().as_text()
    assert "operand_layout_constraints={f32[16,24]{1,0}, s32[]}" in text
