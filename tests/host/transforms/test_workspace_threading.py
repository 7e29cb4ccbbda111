"""The ways in which a workspace reaches an op, and what a change of workspace does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import AR_SPEC, OPS, OURS, X_SPEC, host_calls, integers, mesh_of, sharded

import jax_symm


def operands():
    return integers(0, (16, 32)), integers(1, (32, 24))


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
    assert jax.tree.leaves({"layer": workspace}) == []
    assert jax.tree.map(lambda x: x, workspace) is workspace


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
        np.testing.assert_array_equal(compiled(x, w), product())
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
        kept = jax.jit(all_reduce(mesh, workspace, path="host"))(x, w)
        for scale in range(2, 6):
            jax.block_until_ready(
                jax.jit(all_reduce(mesh, workspace, path="host"))(scale * x, w)
            )
    view = np.from_dlpack(kept.addressable_shards[0].data)
    np.testing.assert_array_equal(view, product())


def test_donation_and_loop_carry(mesh, workspace):
    """Case C26: x + mar(x, w), ten steps, the input donated; the first result is kept."""
    x, w = integers(0, (16, 16)), integers(1, (16, 16))

    def body(x, w):
        y = all_reduce_inside(x, w, workspace)
        width = y.shape[1] // 4
        mine = jax.lax.dynamic_slice_in_dim(
            y, jax.lax.axis_index("tp") * width, width, 1
        )
        return jnp.sign(x + mine)

    step = jax.jit(sharded(body, mesh, out_specs=X_SPEC), donate_argnums=0)
    placed = jax.device_put(x, jax.NamedSharding(mesh, X_SPEC))
    expected = np.asarray(x)
    for i in range(10):
        placed = step(placed, w)
        expected = np.sign(expected + expected @ np.asarray(w))
        if i == 0:
            kept = jnp.copy(placed)
            first = expected
    np.testing.assert_array_equal(placed, expected)
    np.testing.assert_array_equal(kept, first)


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
    call = next(line for line in text.splitlines() if f"jax_symm.{op}.v1" in line)
    assert "operand_layout_constraints" in call or "{1,0}" in call
