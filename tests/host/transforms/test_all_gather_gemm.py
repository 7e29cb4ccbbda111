"""The transpose's partner: all_gather_gemm and gemm_reduce_scatter close under autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    RS_TARGET,
    compiled_text,
    hlo_counts,
    host_calls,
    integers,
    sharded,
)
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm.ops import reference

ROWS, COLUMNS = P("tp", None), P(None, "tp")


def gather(workspace):
    return lambda x, w: jax_symm.all_gather_gemm(x, w, "tp", workspace=workspace)


def scatter(workspace):
    return lambda x, w: jax_symm.gemm_reduce_scatter(
        x, w, "tp", workspace=workspace, path="host"
    )


def lax_gather(x, w):
    return jax.lax.all_gather(x, "tp", axis=0, tiled=True) @ w


def lax_scatter(x, w):
    return reference.gemm_reduce_scatter(x, w, "tp")


def mlp(gather, scatter):
    def body(x, w_gate, w_up, w_down):
        return scatter(gather(x, w_gate) * gather(x, w_up), w_down)

    return body


def mlp_operands():
    return (
        integers(0, (16, 8)),
        integers(1, (8, 16)),
        integers(2, (8, 16)),
        integers(3, (16, 8)),
    )


MLP_SPECS = (ROWS, COLUMNS, COLUMNS, P("tp", None))


@pytest.mark.parametrize("check_vma", [True, False])
def test_values_and_gradients(check_vma, mesh, workspace):
    x, w = integers(0, (16, 8)), integers(1, (8, 16))

    def run(body):
        function = sharded(body, mesh, (ROWS, COLUMNS), COLUMNS, check_vma=check_vma)
        loss = lambda x, w: jnp.sum(function(x, w) ** 2)
        return jax.jit(function)(x, w), jax.jit(jax.grad(loss, (0, 1)))(x, w)

    before = host_calls(workspace)
    jax.tree.map(np.testing.assert_array_equal, run(gather(workspace)), run(lax_gather))
    assert host_calls(workspace) > before, "the transpose is our reduce-scatter"


def test_second_derivatives(mesh, workspace):
    x, w = integers(0, (4, 4)), integers(1, (4, 4))

    def curvature(body):
        function = sharded(body, mesh, (ROWS, COLUMNS), COLUMNS)
        loss = lambda x, w: jnp.sum(function(x, w) ** 3)
        return jax.jit(jax.hessian(loss, (0, 1)))(x, w)

    jax.tree.map(
        np.testing.assert_array_equal,
        curvature(gather(workspace)),
        curvature(lax_gather),
    )


@pytest.mark.parametrize("check_vma", [True, False])
def test_mlp_values_and_gradients(check_vma, mesh, workspace):
    def run(body):
        function = sharded(body, mesh, MLP_SPECS, ROWS, check_vma=check_vma)
        loss = lambda *args: jnp.sum(function(*args))
        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(*mlp_operands())

    ours = run(mlp(gather(workspace), scatter(workspace)))
    jax.tree.map(np.testing.assert_array_equal, ours, run(mlp(lax_gather, lax_scatter)))


def test_mlp_collectives_forward_and_backward(mesh, workspace):
    """Ours: the down projection and the input gradients of gate and up are our call.

    The definition needs a reduce-scatter for each of these three. Neither costs a collective
    that the other does not.
    """

    def counts(body):
        function = sharded(body, mesh, MLP_SPECS, ROWS)
        forward = hlo_counts(compiled_text(function, *mlp_operands()))

        def both(weights, *args):
            y, pullback = jax.vjp(function, *args)
            return y, pullback(weights * y)

        weights = jnp.ones((16, 8))
        return forward, hlo_counts(compiled_text(both, weights, *mlp_operands()))

    forward, both = counts(mlp(gather(workspace), scatter(workspace)))
    lax_forward, lax_both = counts(mlp(lax_gather, lax_scatter))
    assert forward[RS_TARGET] == lax_forward["reduce-scatter"] == 1
    assert both[RS_TARGET] == 3
    assert both["reduce-scatter"] == 0
    assert both["all-reduce"] == lax_both["all-reduce"] == 0
    assert both["all-gather"] <= lax_both["all-gather"]
