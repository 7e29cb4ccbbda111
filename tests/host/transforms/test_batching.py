"""vmap over either operand or both, inside and outside shard_map (case C19)."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    OPS,
    OURS,
    OUT_SPEC,
    compiled_text,
    host_calls,
    integers,
    mesh_of,
    sharded,
)
from jax.sharding import PartitionSpec as P

import jax_symm

AXES = [(0, None), (None, 0), (0, 0), (1, None), (2, 1), (-1, -1)]
TRUTH = {None: "mk", 0: "bmk", 1: "mbk", 2: "mkb", -1: "mkb"}


def batched_operands(axes):
    def operand(seed, axis, shape):
        value = integers(seed, (3, *shape))
        return value[0] if axis is None else jnp.moveaxis(value, 0, axis)

    return operand(0, axes[0], (8, 16)), operand(1, axes[1], (16, 24))


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
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("op", OPS)
def test_vmap_inside_shard_map(op, axes, check_vma, mesh, workspace):
    x, w = batched_operands(axes)
    lead = lambda axis, spec: spec if axis is None else P(None, *spec)
    ours = sharded(
        jax.vmap(op_body(op, workspace), axes),
        mesh,
        in_specs=(lead(axes[0], P(None, "tp")), lead(axes[1], P("tp", None))),
        out_specs=P(None, *OUT_SPEC[op]),
        check_vma=check_vma,
    )
    np.testing.assert_array_equal(jax.jit(ours)(x, w), truth(x, w, axes))


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
        np.testing.assert_array_equal(
            jax.jit(ours)(x, w), np.asarray(x) @ np.asarray(w)
        )


@pytest.mark.parametrize("op", OPS)
def test_vmap_naming_the_collective_axis(op, workspace):
    x, w = integers(0, (4, 8, 16)), integers(1, (4, 16, 24))
    with pytest.raises(NameError, match=r"shard_map.*jax\.vmap will not do"):
        jax.vmap(op_body(op, workspace), axis_name="tp")(x, w)


def test_batch_and_sequence_cost_no_copy_of_x(mesh, workspace):
    """vmap over x, and [b, s, k] scattered along s: no transpose or copy of x is compiled."""
    x, w = integers(0, (2, 16, 64)), integers(1, (64, 24))
    scatter = sharded(
        lambda x, w: jax_symm.gemm_reduce_scatter(
            x, w, "tp", workspace=workspace, scatter_dimension=1, path="host"
        ),
        mesh,
        in_specs=(P(None, None, "tp"), P("tp", None)),
        out_specs=P(None, "tp", None),
    )
    batched = sharded(
        jax.vmap(op_body("gemm_reduce_scatter", workspace), (0, None)),
        mesh,
        in_specs=(P(None, None, "tp"), P("tp", None)),
        out_specs=P(None, "tp", None),
    )
    for function in (scatter, batched):
        text = compiled_text(function, x, w)
        of_x = re.findall(r"= f32\[(?:2,16|32|16,2),16\]\S* (?:copy|transpose)\(", text)
        assert not of_x, text
        np.testing.assert_array_equal(
            jax.jit(function)(x, w), np.asarray(x) @ np.asarray(w)
        )
