"""Axis tuples, several axes and groups, sub-meshes, permuted devices, axis types."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    DEFINITION,
    OPS,
    OURS,
    RS_TARGET,
    compiled_text,
    hlo_counts,
    host_calls,
    mesh_of,
    operands,
    sharded,
)
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm


def check(op, mesh, axis, in_specs, out_specs, operands=operands, **options):
    x, w = operands()
    with jax_symm.Workspace(mesh, axis, max_m=64, n=24, dtype="float32") as workspace:
        body = lambda x, w: OURS[op](x, w, axis, workspace=workspace, path="host")
        function = jax.jit(sharded(body, mesh, in_specs, out_specs, **options))
        np.testing.assert_array_equal(function(x, w), np.asarray(x) @ np.asarray(w))
        assert host_calls(workspace) == mesh.size
        check_gradients(function, x, w)


def check_gradients(function, x, w):
    gradients = lambda f: jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))
    ours = jax.jit(gradients(function))(x, w)
    truth = gradients(lambda x, w: x @ w)(*map(np.asarray, (x, w)))
    jax.tree.map(np.testing.assert_array_equal, ours, truth)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [("dp", "tp"), ("tp", "dp")])
def test_axis_tuple(op, axis):
    out = P(axis, None) if op == "gemm_reduce_scatter" else P()
    check(op, mesh_of((2, 4), ("dp", "tp")), axis, (P(None, axis), P(axis, None)), out)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_several_groups_at_once(op, axis):
    """Rows of x over the other axis: every group reduces its own rows."""
    other = "tp" if axis == "dp" else "dp"
    rows = (other, axis) if op == "gemm_reduce_scatter" else other
    check(
        op,
        mesh_of((2, 4), ("dp", "tp")),
        axis,
        (P(other, axis), P(axis, None)),
        P(rows, None),
    )


@pytest.mark.parametrize("op", OPS)
def test_sub_mesh_and_permuted_devices(op):
    devices = [jax.devices()[i] for i in (6, 1, 4, 3)]
    out = P("tp", None) if op == "gemm_reduce_scatter" else P()
    check(op, mesh_of(devices=devices), "tp", (P(None, "tp"), P("tp", None)), out)


@pytest.mark.parametrize("op", OPS)
def test_explicit_axes_and_set_mesh(op):
    mesh = mesh_of(axis_type=AxisType.Explicit)
    x, w = operands()
    x = jax.device_put(x, NamedSharding(mesh, P(None, "tp")))
    w = jax.device_put(w, NamedSharding(mesh, P("tp", None)))
    out = P("tp", None) if op == "gemm_reduce_scatter" else P(None, None)
    with (
        jax.set_mesh(mesh),
        jax_symm.Workspace(None, "tp", max_m=64, n=24, dtype="float32") as ws,
    ):
        body = lambda x, w: OURS[op](x, w, "tp", workspace=ws, path="host")
        function = jax.jit(jax.shard_map(body, out_specs=out))
        np.testing.assert_array_equal(function(x, w), np.asarray(x) @ np.asarray(w))
        loss = lambda x, w: jnp.sum(jax.shard_map(body, out_specs=out)(x, w) ** 2)
        gradient = jax.jit(jax.grad(loss))(x, w)
        assert jax.typeof(gradient).sharding.spec == P(None, "tp")
        truth = jax.grad(lambda x, w: jnp.sum((x @ w) ** 2))(*operands())
        np.testing.assert_array_equal(gradient, truth)


@pytest.mark.parametrize("op", OPS)
def test_nested_shard_map(op):
    """The inner shard_map makes the axis manual, the outer one another axis."""
    mesh = mesh_of((2, 4), ("dp", "tp"))
    x, w = operands()
    out = P("tp", None) if op == "gemm_reduce_scatter" else P(None, None)
    with jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32") as ws:
        body = lambda x, w: OURS[op](x, w, "tp", workspace=ws, path="host")

        def outer(x, w):
            return jax.shard_map(
                body,
                in_specs=(P(None, "tp"), P("tp", None)),
                out_specs=out,
                axis_names={"tp"},
            )(x, w)

        with jax.set_mesh(mesh):
            function = jax.shard_map(
                outer,
                mesh=mesh,
                in_specs=(P("dp"), P()),
                out_specs=P("dp"),
                axis_names={"dp"},
            )
            np.testing.assert_array_equal(
                jax.jit(function)(x, w), np.asarray(x) @ np.asarray(w)
            )
        assert host_calls(ws) == mesh.size


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_gradient_inside_nested_shard_map(op, check_vma):
    """Outside of both, JAX itself cannot lower the gradient, of `psum` neither."""
    mesh = mesh_of((2, 4), ("dp", "tp"))
    specs = (P(None, "tp"), P("tp", None))

    def gradients(call):
        def loss(x, w):
            return jnp.sum(call(x, w) ** 2)

        def outer(x, w):
            if check_vma:
                w = jax.lax.pcast(w, "dp", to="varying")
            dx, dw = jax.shard_map(
                jax.grad(loss, (0, 1)),
                in_specs=specs,
                out_specs=specs,
                axis_names={"tp"},
                check_vma=check_vma,
            )(x, w)
            return dx, jax.lax.psum(dw, "dp")

        function = jax.shard_map(
            outer,
            mesh=mesh,
            in_specs=(P("dp"), P()),
            out_specs=(P("dp"), P()),
            axis_names={"dp"},
            check_vma=check_vma,
        )
        return jax.jit(function)(*operands())

    with (
        jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32") as ws,
        jax.set_mesh(mesh),
    ):
        ours = gradients(lambda x, w: OURS[op](x, w, "tp", workspace=ws, path="host"))
        wanted = gradients(lambda x, w: DEFINITION[op](x, w, "tp"))
        jax.tree.map(np.testing.assert_array_equal, ours, wanted)
        assert host_calls(ws) == mesh.size


@pytest.mark.parametrize("op", OPS)
def test_gradient_outside_nested_shard_map(op):
    """As the definition: right, or what JAX says of it where it cannot lower that."""
    mesh = mesh_of((2, 4), ("dp", "tp"))
    out = P("tp", None) if op == "gemm_reduce_scatter" else P(None, None)
    x, w = operands()

    def outcome(call):
        def outer(x, w):
            specs = (P(None, "tp"), P("tp", None))
            inner = jax.shard_map(
                call, in_specs=specs, out_specs=out, axis_names={"tp"}
            )
            return inner(x, w)

        function = jax.shard_map(
            outer,
            mesh=mesh,
            in_specs=(P("dp"), P()),
            out_specs=P("dp"),
            axis_names={"dp"},
        )
        gradient = jax.grad(lambda x, w: jnp.sum(function(x, w) ** 2), (0, 1))
        try:
            return jax.tree.map(np.asarray, jax.jit(gradient)(x, w))
        except ValueError as error:
            return str(error)[: len("Cannot lower jaxpr with verifier errors")]

    with (
        jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32") as ws,
        jax.set_mesh(mesh),
    ):
        ours = outcome(lambda x, w: OURS[op](x, w, "tp", workspace=ws, path="host"))
        wanted = outcome(lambda x, w: DEFINITION[op](x, w, "tp"))
    jax.tree.map(np.testing.assert_array_equal, ours, wanted)


@pytest.mark.parametrize("op", OPS)
def test_auto_axes_left_over(op):
    """Right, and warned once with the axes' names: every device of the other axis repeats it."""
    mesh = mesh_of((2, 4), ("dp", "tp"))
    # Sharded over the axis that is left over, so that the compiler must gather.
    x = jax.device_put(operands()[0], NamedSharding(mesh, P("dp", "tp")))
    w = jax.device_put(operands()[1], NamedSharding(mesh, P("tp", "dp")))
    out = P("tp", None) if op == "gemm_reduce_scatter" else P()
    with jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32") as ws:
        body = lambda x, w: OURS[op](x, w, "tp", workspace=ws, path="host")
        specs = (P(None, "tp"), P("tp", None))
        function = sharded(body, mesh, specs, out, axis_names={"tp"})
        jax_symm.ops._surroundings._warn_once.cache_clear()  # another test may have been told
        cost = "mesh axes dp to the compiler.* all 2 devices .* do the same work"
        with pytest.warns(UserWarning, match=cost) as caught:
            y = jax.jit(function)(x, w)
        assert [w.filename for w in caught] == [__file__], "where the user calls"
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            jax.jit(lambda x, w: 2 * function(x, w))(x, w)
        np.testing.assert_array_equal(y, np.asarray(x) @ np.asarray(w))
        counts = hlo_counts(jax.jit(function).lower(x, w).compile().as_text())
        assert counts == {"all-gather": 2, f"jax_symm.{op}.v1": 1}, "x and w, as said"
        check_gradients(function, x, w)


def test_auto_axes_left_over_around_all_gather_gemm():
    """Forward it is lax's; of its transpose, which is our call, the caller is warned."""
    mesh = mesh_of((2, 4), ("dp", "tp"))
    x = jax.device_put(operands()[0], NamedSharding(mesh, P("tp", "dp")))
    w = jax.device_put(operands()[1], NamedSharding(mesh, P("dp", "tp")))
    with jax_symm.Workspace(mesh, "tp", max_m=64, n=32, dtype="float32") as ws:
        body = lambda x, w: jax_symm.all_gather_gemm(x, w, "tp", workspace=ws)
        specs = (P("tp", None), P(None, "tp"))
        function = sharded(body, mesh, specs, P(None, "tp"), axis_names={"tp"})
        jax_symm.ops._surroundings._warn_once.cache_clear()
        with pytest.warns(
            UserWarning, match="transpose of all_gather_gemm: .* dp"
        ) as caught:
            check_gradients(function, x, w)
        assert [w.filename for w in caught] == [__file__]
        assert host_calls(ws) == mesh.size


@pytest.mark.parametrize("op", OPS)
def test_explicit_axes_left_over(op):
    """An operand sharded over an Explicit axis outside axis_names is refused at trace."""
    mesh = mesh_of((2, 4), ("dp", "tp"), AxisType.Explicit)
    x = jax.device_put(operands()[0], NamedSharding(mesh, P("dp", "tp")))
    w = jax.device_put(operands()[1], NamedSharding(mesh, P("tp", None)))
    with (
        jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32") as ws,
        jax.set_mesh(mesh),
    ):
        body = lambda x, w: OURS[op](x, w, "tp", workspace=ws, path="host")
        out = P("tp", None) if op == "gemm_reduce_scatter" else P(None, None)
        function = jax.shard_map(body, out_specs=out, axis_names={"tp"})
        with pytest.raises(ValueError, match=r"dp.*axis_names"):
            jax.jit(function)(x, w)


@pytest.mark.parametrize("op", OPS)
def test_explicit_axes_left_over_without_an_operand_on_them(op):
    mesh = mesh_of((2, 4), ("dp", "tp"), AxisType.Explicit)
    x = jax.device_put(operands()[0], NamedSharding(mesh, P(None, "tp")))
    w = jax.device_put(operands()[1], NamedSharding(mesh, P("tp", None)))
    with (
        jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32") as ws,
        jax.set_mesh(mesh),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")  # what is replicated was so by the user's choice
        body = lambda x, w: OURS[op](x, w, "tp", workspace=ws, path="host")
        out = P("tp", None) if op == "gemm_reduce_scatter" else P(None, None)
        function = jax.shard_map(body, out_specs=out, axis_names={"tp"})
        np.testing.assert_array_equal(
            jax.jit(function)(x, w), np.asarray(x) @ np.asarray(w)
        )
        check_gradients(function, x, w)


def test_no_gather_around_the_call():
    mesh = mesh_of((2, 4), ("dp", "tp"))
    x, w = operands()
    with jax_symm.Workspace(mesh, "tp", max_m=64, n=24, dtype="float32") as ws:
        body = lambda x, w: jax_symm.gemm_reduce_scatter(
            x, w, "tp", workspace=ws, path="host"
        )
        specs = (P("dp", "tp"), P("tp", None))
        text = compiled_text(sharded(body, mesh, specs, P(("dp", "tp"), None)), x, w)
    assert hlo_counts(text) == {RS_TARGET: 1}


@pytest.mark.parametrize("op", OPS)
def test_odd_axis_arguments(op):
    """Case C20: () is a group of one; an unknown or doubled axis is an error at trace."""
    mesh = mesh_of()
    x, w = operands()

    def call(axis):
        body = lambda x, w: OURS[op](x, w, axis)
        specs = (P("tp", None), P(None, None))
        return jax.jit(sharded(body, mesh, specs, P("tp", None)))(x, w)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(call(()), np.asarray(x) @ np.asarray(w))
    with pytest.raises(NameError, match="nope"):
        call("nope")
    with pytest.raises(ValueError, match="tp"):
        call(("tp", "tp"))
