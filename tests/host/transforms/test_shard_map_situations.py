"""Situations in which shard_map itself has been wrong before, for our ops.

Replication types through scan, while and cond carries, rematerialisation with collectives,
transposes of values that fan out, and bodies that close over arrays.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import AR_SPEC, DEFINITION, OURS, RS_SPEC, X_SPEC, integers, sharded
from jax.sharding import PartitionSpec as P

import jax_symm


def square():
    return integers(0, (8, 16)), integers(1, (16, 16))


def ar(workspace):
    return lambda x, w: jax_symm.gemm_all_reduce(
        x, w, "tp", workspace=workspace, path="host"
    )


def rs(workspace):
    return lambda x, w: jax_symm.gemm_reduce_scatter(
        x, w, "tp", workspace=workspace, path="host"
    )


def test_matmul_reduce_scatter(mesh, workspace):
    x, w = square()
    y = jax.jit(sharded(rs(workspace), mesh, out_specs=RS_SPEC))(x, w)
    np.testing.assert_array_equal(y, np.asarray(x) @ np.asarray(w))


@pytest.mark.parametrize("loop", ["scan", "while", "fori"])
def test_invariant_carry_stays_invariant(loop, mesh, workspace):
    """The all-reduce's result may be carried as replicated and returned through P()."""

    def body(x, w):
        start = jnp.zeros((8, 16), x.dtype)
        step = lambda c: jnp.sign(c + ar(workspace)(x, w))
        if loop == "scan":
            return jax.lax.scan(lambda c, _: (step(c), None), start, None, 3)[0]
        if loop == "fori":
            return jax.lax.fori_loop(0, 3, lambda _, c: step(c), start)
        return jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, step(c[1])), (0, start)
        )[1]

    x, w = square()
    y = jax.jit(sharded(body, mesh, out_specs=AR_SPEC))(x, w)
    np.testing.assert_array_equal(y, np.sign(np.asarray(x) @ np.asarray(w)))


def test_varying_result_in_an_invariant_carry_is_refused(mesh, workspace):
    def body(x, w):
        start = jnp.zeros((2, 16), x.dtype)
        return jax.lax.scan(lambda c, _: (rs(workspace)(x, w), None), start, None, 3)[0]

    with pytest.raises((TypeError, ValueError), match="varying|carry"):
        jax.jit(sharded(body, mesh, out_specs=RS_SPEC))(*square())


def test_cond_branches_of_one_type(mesh, workspace):
    def body(x, w):
        return jax.lax.cond(
            jax.lax.psum(1, "tp") > 2,
            lambda: ar(workspace)(x, w),
            lambda: jnp.zeros((8, 16)),
        )

    x, w = square()
    y = jax.jit(sharded(body, mesh, out_specs=AR_SPEC))(x, w)
    np.testing.assert_array_equal(y, np.asarray(x) @ np.asarray(w))


def test_fan_out_of_one_operand(mesh, workspace):
    """x is used twice by ours and once by lax: cotangents of all three are added once."""

    def gradient(ar, rs):
        def body(x, w):
            y = ar(x, w)
            z = jax.lax.all_gather(rs(x, w), "tp", axis=0, tiled=True)
            return (y * 1.0).sum() + jax.lax.psum((z * y).sum() + (x * x).sum(), "tp")

        return jax.jit(jax.grad(sharded(body, mesh, out_specs=P()), (0, 1)))(*square())

    ours = gradient(ar(workspace), rs(workspace))
    expected = gradient(
        lambda x, w: DEFINITION["gemm_all_reduce"](x, w, "tp"),
        lambda x, w: DEFINITION["gemm_reduce_scatter"](x, w, "tp"),
    )
    jax.tree.map(np.testing.assert_array_equal, ours, expected)


def test_fan_out_of_a_closed_over_weight(mesh, workspace):
    x, w = square()

    def loss(scale, call):
        body = lambda x, w: call(scale * x, w) + call(x, scale * w)
        return jnp.sum(sharded(body, mesh, out_specs=AR_SPEC)(x, w))

    ours = jax.grad(loss)(2.0, ar(workspace))
    np.testing.assert_array_equal(ours, 2 * np.sum(np.asarray(x) @ np.asarray(w)))


@pytest.mark.parametrize("op", sorted(OURS))
def test_remat_recomputes_the_collective(op, mesh, workspace):
    def gradient(function):
        def body(x, w):
            return jnp.sin(jax.checkpoint(lambda x: jnp.cos(function(x, w)))(x))

        out = RS_SPEC if op == "gemm_reduce_scatter" else AR_SPEC
        total = lambda x, w: jnp.sum(sharded(body, mesh, out_specs=out)(x, w))
        return jax.jit(jax.grad(total, (0, 1)))(*square())

    ours = gradient(lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host"))
    expected = gradient(lambda x, w: DEFINITION[op](x, w, "tp"))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        ours,
        expected,
    )


def test_unused_result_is_dropped_and_equal_calls_are_merged(mesh, workspace):
    x, w = square()
    unused = sharded(lambda x, w: (ar(workspace)(x, w), x)[1], mesh, out_specs=X_SPEC)
    assert "jax_symm." not in jax.jit(unused).lower(x, w).compile().as_text()
    twice = sharded(
        lambda x, w: ar(workspace)(x, w) + ar(workspace)(x, w), mesh, out_specs=AR_SPEC
    )
    np.testing.assert_array_equal(
        jax.jit(twice)(x, w), 2 * np.asarray(x) @ np.asarray(w)
    )
