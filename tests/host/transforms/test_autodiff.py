"""Derivatives of our ops against those of the definition, and the collectives they cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    AR_TARGET,
    DEFINITION,
    OPS,
    OURS,
    OUT_SPEC,
    RS_TARGET,
    W_SPEC,
    X_SPEC,
    compiled_text,
    hlo_counts,
    host_calls,
    integers,
    sharded,
)
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads


def pair(op, mesh, workspace, **options):
    options = {"out_specs": OUT_SPEC[op], **options}
    ours = sharded(
        lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host"),
        mesh,
        **options,
    )
    return ours, sharded(lambda x, w: DEFINITION[op](x, w, "tp"), mesh, **options)


def operands(m=12):
    return integers(0, (m, 8)), integers(1, (8, 8))


def assert_trees_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("m", [12, 10])
@pytest.mark.parametrize("op", OPS)
def test_grad_outside_shard_map(op, m, check_vma, mesh, workspace):
    ours, expected = pair(op, mesh, workspace, check_vma=check_vma)
    loss = lambda f: jax.jit(
        jax.value_and_grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))
    )
    before = host_calls(workspace)
    assert_trees_equal(loss(ours)(*operands(m)), loss(expected)(*operands(m)))
    assert host_calls(workspace) > before
    x, w = operands(m)
    truth = jax.grad(lambda x, w: jnp.sum((x @ w) ** 2), (0, 1))(x, w)
    assert_trees_equal(loss(ours)(x, w)[1], truth)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_grad_inside_shard_map(op, check_vma, mesh, workspace):
    def gradient(function):
        def body(x, w):
            return jax.grad(lambda x, w: jnp.sum(function(x, w) ** 2), (0, 1))(x, w)

        return jax.jit(
            sharded(body, mesh, out_specs=(X_SPEC, W_SPEC), check_vma=check_vma)
        )

    ours = gradient(lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host"))
    expected = gradient(lambda x, w: DEFINITION[op](x, w, "tp"))
    assert_trees_equal(ours(*operands()), expected(*operands()))


@pytest.mark.parametrize("replicated", ["x", "w"])
@pytest.mark.parametrize("op", OPS)
def test_grad_of_a_replicated_operand(op, replicated, mesh, workspace):
    """A replicated operand is made varying by the op, so its gradient is summed over ranks."""
    specs = (P(), W_SPEC) if replicated == "x" else (X_SPEC, P())
    x, w = integers(0, (12, 2)), integers(1, (2, 8))
    x = x if replicated == "x" else integers(0, (12, 8))
    w = w if replicated == "w" else integers(1, (8, 8))
    ours, expected = pair(op, mesh, workspace, in_specs=specs)
    gradient = lambda f: jax.jit(jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1)))
    assert_trees_equal(gradient(ours)(x, w), gradient(expected)(x, w))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_check_grads(op, check_vma, mesh, workspace):
    ours, _ = pair(op, mesh, workspace, check_vma=check_vma)
    check_grads(
        jax.jit(ours), operands(), order=2, modes=("fwd", "rev"), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("op", OPS)
def test_jvp_linearize_jacrev_and_second_derivatives(op, mesh, workspace):
    ours, expected = pair(op, mesh, workspace)
    x, w = operands(4)
    tangents = integers(2, x.shape), integers(3, w.shape)
    assert_trees_equal(
        jax.jvp(ours, (x, w), tangents), jax.jvp(expected, (x, w), tangents)
    )
    y, linear = jax.linearize(ours, x, w)
    assert_trees_equal((y, linear(*tangents)), jax.jvp(expected, (x, w), tangents))
    assert_trees_equal(jax.jacrev(ours)(x, w), jax.jacrev(expected)(x, w))
    curvature = lambda f: jax.jvp(
        jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1)), (x, w), tangents
    )
    assert_trees_equal(curvature(ours), curvature(expected))


def test_integer_and_zero_tangents(mesh, workspace):
    """Only one operand differentiated: the other's tangent is a symbolic zero."""
    ours, expected = pair("gemm_all_reduce", mesh, workspace)
    x, w = operands()
    for argument in (0, 1):
        gradient = lambda f, a=argument: jax.grad(lambda *p: jnp.sum(f(*p) ** 2), a)
        assert_trees_equal(gradient(ours)(x, w), gradient(expected)(x, w))


def test_no_stray_collective_in_the_gradient(mesh, workspace):
    """RS: one call forward, one all-gather backward. AR: one call forward, none backward."""
    x, w = operands()
    for op, target, backward in [
        ("gemm_reduce_scatter", RS_TARGET, {"all-gather": 1}),
        ("gemm_all_reduce", AR_TARGET, {}),
    ]:
        ours, _ = pair(op, mesh, workspace)
        weights = jnp.ones(jax.eval_shape(ours, x, w).shape)

        def loss_and_grads(x, w, weights, ours=ours):
            y, pullback = jax.vjp(ours, x, w)
            return y, pullback(y * weights)

        counts = hlo_counts(compiled_text(loss_and_grads, x, w, weights))
        assert counts == {target: 1, **backward}
