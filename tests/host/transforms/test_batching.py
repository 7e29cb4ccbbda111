"""vmap over either operand or both, inside and outside shard_map (case C19)."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    OPS,
    OURS,
    OUT_SPEC,
    W_SPEC,
    X_SPEC,
    compiled_text,
    hlo_counts,
    host_calls,
    integers,
    mesh_of,
    sharded,
)
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm import reference

AXES = [(0, None), (None, 0), (0, 0), (1, None), (2, 1), (-1, -1)]
TRUTH = {None: "mk", 0: "bmk", 1: "mbk", 2: "mkb", -1: "mkb"}


def batched_operands(axes):
    def operand(seed, axis, shape):
        value = integers(seed, (3, *shape))
        return value[0] if axis is None else jnp.moveaxis(value, 0, axis)

    return operand(0, axes[0], (8, 16)), operand(1, axes[1], (16, 24))


def spec_with_batch(spec, axis):
    entries = list(spec)
    if axis is not None:
        entries.insert(axis % (len(entries) + 1), None)
    return P(*entries)


def truth(x, w, axes):
    plain = lambda x, w: x @ w
    return np.asarray(jax.vmap(plain, axes)(x, w))


def op_body(op, workspace):
    return lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host")


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("op", OPS)
def test_vmap_outside_shard_map(op, axes, mesh, workspace):
    x, w = batched_operands(axes)
    ours = jax.vmap(sharded(op_body(op, workspace), mesh, out_specs=OUT_SPEC[op]), axes)
    before = host_calls(workspace)
    np.testing.assert_array_equal(jax.jit(ours)(x, w), truth(x, w, axes))
    assert host_calls(workspace) > before


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("op", OPS)
def test_vmap_inside_shard_map(op, axes, check_vma, mesh, workspace):
    x, w = batched_operands(axes)
    ours = sharded(
        jax.vmap(op_body(op, workspace), axes),
        mesh,
        in_specs=(spec_with_batch(X_SPEC, axes[0]), spec_with_batch(W_SPEC, axes[1])),
        out_specs=P(None, *OUT_SPEC[op]),
        check_vma=check_vma,
    )
    before = host_calls(workspace)
    np.testing.assert_array_equal(jax.jit(ours)(x, w), truth(x, w, axes))
    assert host_calls(workspace) > before


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("op", OPS)
def test_vmap_over_nothing(op, axes, mesh, workspace):
    """A batch of no entries gives an empty result and gradients of zeros."""
    x, w = (
        a[:0] if axis == 0 else a
        for a, axis in zip(batched_operands(axes), axes, strict=True)
    )
    f = jax.vmap(sharded(op_body(op, workspace), mesh, out_specs=OUT_SPEC[op]), axes)
    value, grads = jax.jit(
        jax.value_and_grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))
    )(x, w)
    assert value == 0
    assert [g.shape for g in grads] == [x.shape, w.shape]
    assert not any(np.any(g) for g in grads)


AXES_OF_THREE = [(0, None), (1, None), (2, None), (3, None), (None, 1), (1, 0), (3, 2)]


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("axes", AXES_OF_THREE)
@pytest.mark.parametrize("name", [*OPS, "all_gather_gemm"])
def test_gradients_of_each_entry(name, axes, dimension, mesh, workspace):
    """vmap of value_and_grad: the transposes are batched too, along any dimension."""
    x_axis, w_axis = axes
    x = integers(0, (4, 4, 8) if x_axis is None else (3, 4, 4, 8))
    w = integers(1, (8, 8) if w_axis is None else (3, 8, 8))
    x = x if x_axis is None else jnp.moveaxis(x, 0, x_axis)
    w = w if w_axis is None else jnp.moveaxis(w, 0, w_axis)
    sharded_dimension = P(*[None] * dimension, "tp")
    in_specs, out_spec, options = {
        "gemm_reduce_scatter": (
            (P(None, None, "tp"), W_SPEC),
            sharded_dimension,
            {"scatter_dimension": dimension},
        ),
        "gemm_all_reduce": ((P(None, None, "tp"), W_SPEC), P(), {}),
        "all_gather_gemm": (
            (sharded_dimension, P(None, "tp")),
            P(None, None, "tp"),
            {"gather_dimension": dimension},
        ),
    }[name]

    def gradients(module, **more):
        call = functools.partial(
            getattr(module, name), axis_name="tp", **options, **more
        )
        f = sharded(lambda x, w: call(x, w), mesh, in_specs, out_spec)
        entry = jax.value_and_grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))
        return jax.jit(jax.vmap(entry, axes))(x, w)

    ours = gradients(jax_symm, workspace=workspace, path="host")
    jax.tree.map(np.testing.assert_array_equal, ours, gradients(reference))


@pytest.mark.parametrize("op", OPS)
def test_vmap_of_vmap_and_grad_of_vmap(op, mesh, workspace):
    x, w = integers(0, (2, 3, 8, 16)), integers(1, (16, 24))
    ours = sharded(op_body(op, workspace), mesh, out_specs=OUT_SPEC[op])
    twice = jax.vmap(jax.vmap(ours, (0, None)), (0, None))
    np.testing.assert_array_equal(jax.jit(twice)(x, w), np.asarray(x) @ np.asarray(w))
    loss = lambda f: lambda w: jnp.sum(f(x, w) ** 2)
    np.testing.assert_array_equal(
        jax.jit(jax.grad(loss(twice)))(w), jax.grad(loss(lambda x, w: x @ w))(w)
    )


@pytest.mark.parametrize("op", OPS)
def test_spmd_axis_name(op):
    """A stack of pipeline stages: vmap over shard_map, its batch sharded over another axis."""
    mesh = mesh_of((2, 4), ("dp", "tp"))
    x, w = integers(0, (4, 8, 16)), integers(1, (16, 24))
    with jax_symm.Workspace(mesh, "tp", max_m=32, n=24, dtype="float32") as workspace:
        ours = jax.vmap(
            sharded(op_body(op, workspace), mesh, out_specs=OUT_SPEC[op]),
            (0, None),
            spmd_axis_name="dp",
        )
        x = jax.device_put(x, jax.NamedSharding(mesh, P("dp")))
        y = jax.jit(ours)(x, w)
        np.testing.assert_array_equal(y, np.asarray(x) @ np.asarray(w))
        assert host_calls(workspace) == mesh.size
        assert y.sharding.spec[0] == "dp"
        counts = hlo_counts(jax.jit(ours).lower(x, w).compile().as_text())
        assert counts == {f"jax_symm.{op}.v1": 1}  # each group its own entries


@pytest.mark.parametrize("op", OPS)
def test_vmap_naming_the_collective_axis(op, workspace):
    x, w = integers(0, (4, 8, 16)), integers(1, (4, 16, 24))
    with pytest.raises(NameError, match=r"shard_map.*jax\.vmap will not do"):
        jax.vmap(op_body(op, workspace), axis_name="tp")(x, w)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", [*OPS, "all_gather_gemm"])
def test_vmap_taking_the_name_of_the_axis(name, size, check_vma, mesh, workspace):
    """Inside shard_map, with as many entries as ranks or not: never the wrong axis."""
    call = getattr(jax_symm, name)
    for given in (workspace, None):
        body = lambda x, w, ws=given: jax.vmap(
            lambda x: call(x, w, "tp", workspace=ws), axis_name="tp"
        )(x)
        f = sharded(body, mesh, (P(), P()), P(), check_vma=check_vma)
        with pytest.raises(NameError, match=rf"{name}: axis 'tp' is .* of a jax\.vmap"):
            jax.jit(f)(jnp.ones((size, 8, 16)), jnp.ones((16, 24)))


COPIES = r"= f32\[(?:2,16|32|16,2),16\]\S* (?:copy|transpose)\("


def test_the_reader_of_copies_sees_one():
    swap = jax.jit(lambda x: jnp.swapaxes(x, 0, 1) + 0)
    assert re.search(COPIES, compiled_text(swap, integers(0, (2, 16, 16))))


@pytest.mark.parametrize("op", OPS)
def test_batch_costs_no_copy_of_x(op, mesh, workspace):
    """vmap over the first or second dimension of x: no transpose or copy of it."""
    w = integers(1, (64, 24))
    for axis in (0, 1):
        x = jnp.moveaxis(integers(0, (2, 16, 64)), 0, axis)
        out = list(OUT_SPEC[op])
        out.insert(axis, None)
        for inside in (True, False):
            specs = (P(None, None, "tp"), P("tp", None))
            body, axes = op_body(op, workspace), (axis, None)
            function = (
                sharded(jax.vmap(body, axes, axis), mesh, specs, P(*out))
                if inside
                else jax.vmap(sharded(body, mesh, out_specs=OUT_SPEC[op]), axes, axis)
            )
            text = compiled_text(function, x, w)
            assert not re.search(COPIES, text), text
            np.testing.assert_array_equal(
                jax.jit(function)(x, w), np.asarray(x) @ np.asarray(w)
            )


@pytest.mark.parametrize("dimension", [0, 1])
def test_sequence_scatter_costs_no_copy_of_x(dimension, mesh, workspace):
    """[b, s, k] scattered along s, and [s, b, k]: no transpose or copy of x."""
    x, w = integers(0, (2, 16, 64)), integers(1, (64, 24))
    x = x if dimension == 1 else jnp.swapaxes(x, 0, 1)
    function = sharded(
        lambda x, w: jax_symm.gemm_reduce_scatter(
            x, w, "tp", workspace=workspace, scatter_dimension=dimension, path="host"
        ),
        mesh,
        in_specs=(P(None, None, "tp"), P("tp", None)),
        out_specs=P(*[None] * dimension, "tp"),
    )
    text = compiled_text(function, x, w)
    assert not re.search(COPIES, text), text
    np.testing.assert_array_equal(
        jax.jit(function)(x, w), np.asarray(x) @ np.asarray(w)
    )
