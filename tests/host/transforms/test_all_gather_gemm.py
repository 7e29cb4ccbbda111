"""The transpose's partner: all_gather_gemm and gemm_reduce_scatter close under autodiff."""

import pathlib

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

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs/design/transformations.md"
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


@pytest.mark.parametrize("w_layout", ["kn", "nk"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_values_and_gradients(check_vma, w_layout, mesh, workspace):
    x, w = integers(0, (16, 8)), integers(1, (8, 16))
    w, columns = (w, COLUMNS) if w_layout == "kn" else (w.T, ROWS)

    def run(call, **options):
        body = lambda x, w: call(x, w, "tp", w_layout=w_layout, **options)
        function = sharded(body, mesh, (ROWS, columns), COLUMNS, check_vma=check_vma)
        loss = lambda x, w: jnp.sum(function(x, w) ** 2)
        return jax.jit(function)(x, w), jax.jit(jax.grad(loss, (0, 1)))(x, w)

    before = host_calls(workspace)
    ours = run(jax_symm.all_gather_gemm, workspace=workspace)
    jax.tree.map(np.testing.assert_array_equal, ours, run(reference.all_gather_gemm))
    assert host_calls(workspace) > before, "the transpose is our reduce-scatter"
    product = np.asarray(x) @ np.asarray(w if w_layout == "kn" else w.T)
    np.testing.assert_array_equal(ours[0], product)


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


def test_transpose_of_reduce_scatter_is_all_gather_gemm(mesh, workspace):
    """And the transpose of that is our reduce-scatter again: the pair is closed."""
    x, w, ct = integers(0, (16, 8)), integers(1, (8, 16)), integers(2, (16, 16))
    function = sharded(scatter(workspace), mesh, (COLUMNS, P("tp", None)), ROWS)
    of_x = lambda ct: jax.linear_transpose(lambda x: function(x, w), x)(ct)[0]
    assert " all_gather_gemm[" in str(jax.make_jaxpr(of_x)(ct))
    again = lambda x: jax.linear_transpose(of_x, ct)(x)[0]
    assert " gemm_reduce_scatter[" in str(jax.make_jaxpr(again)(x))
    before = host_calls(workspace)
    np.testing.assert_array_equal(jax.jit(again)(x), np.asarray(x) @ np.asarray(w))
    assert host_calls(workspace) == before + mesh.size


def test_size_that_does_not_fit(mesh, workspace):
    call = lambda x, w: jax_symm.all_gather_gemm(x, w, "tp", size=12)
    with pytest.raises(ValueError, match=r"size: got 12, expected .* 4 rows"):
        sharded(call, mesh, (ROWS, COLUMNS), COLUMNS)(*mlp_operands()[:2])


def mlp_counts(gather, scatter, mesh, check_vma):
    """Collectives of the MLP: forward, and forward with backward."""
    function = sharded(mlp(gather, scatter), mesh, MLP_SPECS, ROWS, check_vma=check_vma)
    forward = hlo_counts(compiled_text(function, *mlp_operands()))

    def both(weights, *args):
        y, pullback = jax.vjp(function, *args)
        return y, pullback(weights * y)

    weights = jnp.ones((16, 8))
    return forward, hlo_counts(compiled_text(both, weights, *mlp_operands()))


@pytest.mark.parametrize("check_vma", [True, False])
def test_mlp_collectives_forward_and_backward(check_vma, mesh, workspace):
    """Ours: the down projection and the input gradients of gate and up are our call.

    The definition has a reduce-scatter in each of these three places. Neither costs a
    collective that the other does not. The document holds what is printed here (-s).
    """
    ours = mlp_counts(gather(workspace), scatter(workspace), mesh, check_vma)
    definition = mlp_counts(lax_gather, lax_scatter, mesh, check_vma)
    document = DOCUMENT.read_text()
    for name, mine, theirs in zip(
        ("forward", "forward and backward"), ours, definition, strict=True
    ):
        row = f"| MLP, {name} | {as_text(mine)} | {as_text(theirs)} |"
        print(row)
        assert row in document
    assert ours[0][RS_TARGET] == 1
    assert ours[1][RS_TARGET] == 3
    for mine, theirs in zip(ours, definition, strict=True):
        mine["reduce-scatter"] += mine.pop(RS_TARGET)
        assert mine == theirs


def as_text(counts):
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
