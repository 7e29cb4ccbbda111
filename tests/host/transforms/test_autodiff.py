"""Derivatives of our ops against those of the definition, and the collectives they cost."""

import functools

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
@pytest.mark.parametrize("m", [12, 10])
@pytest.mark.parametrize("op", OPS)
def test_grad_inside_shard_map(op, m, check_vma, mesh, workspace):
    def gradient(function):
        def body(x, w):
            return jax.grad(lambda x, w: jnp.sum(function(x, w) ** 2), (0, 1))(x, w)

        return jax.jit(
            sharded(body, mesh, out_specs=(X_SPEC, W_SPEC), check_vma=check_vma)
        )

    ours = gradient(lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host"))
    expected = gradient(lambda x, w: DEFINITION[op](x, w, "tp"))
    before = host_calls(workspace)
    assert_trees_equal(ours(*operands(m)), expected(*operands(m)))
    assert host_calls(workspace) > before


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("replicated", ["x", "w"])
@pytest.mark.parametrize("op", OPS)
def test_grad_of_a_replicated_operand(op, replicated, check_vma, mesh, workspace):
    """A replicated operand is made varying by the op, so its gradient is summed over ranks."""
    specs = (P(), W_SPEC) if replicated == "x" else (X_SPEC, P())
    x, w = integers(0, (12, 2)), integers(1, (2, 8))
    x = x if replicated == "x" else integers(0, (12, 8))
    w = w if replicated == "w" else integers(1, (8, 8))
    ours, expected = pair(op, mesh, workspace, in_specs=specs, check_vma=check_vma)
    gradient = lambda f: jax.jit(jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1)))
    assert_trees_equal(gradient(ours)(x, w), gradient(expected)(x, w))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_check_grads(op, check_vma, mesh, workspace):
    ours, _ = pair(op, mesh, workspace, check_vma=check_vma)
    check_grads(
        jax.jit(ours), operands(), order=2, modes=("fwd", "rev"), rtol=1e-2, atol=1e-2
    )


def linearize(f, x, w, dx, dw):
    y, linear = jax.linearize(f, x, w)
    return y, linear(dx, dw)


def linear_transpose(f, x, w, dx, dw):
    """Of the op in either operand, which `grad` reaches through a linearisation only."""
    ct = jnp.sign(f(x, w))
    by_x = jax.linear_transpose(lambda x: f(x, w), x)
    return by_x(ct), jax.linear_transpose(lambda w: f(x, w), w)(ct)


def curvature(f, x, w, dx, dw):
    gradient = jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))
    return jax.jvp(gradient, (x, w), (dx, dw))


DERIVATIVES = {
    "jvp": lambda f, x, w, dx, dw: jax.jvp(f, (x, w), (dx, dw)),
    "linearize": linearize,
    "linear_transpose": linear_transpose,
    "jacrev": lambda f, x, w, dx, dw: jax.jacrev(lambda x, w: f(x, w) ** 2, (0, 1))(
        x, w
    ),
    "jacfwd": lambda f, x, w, dx, dw: jax.jacfwd(f, (0, 1))(x, w),
    "second": curvature,
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("op", OPS)
def test_derivatives(op, name, where, check_vma, mesh, workspace):
    """Three rows over four ranks: the last rank's shard is all padding."""
    derivative = DERIVATIVES[name]
    x, w = integers(0, (3, 8)), integers(1, (8, 4))
    tangents = integers(2, x.shape), integers(3, w.shape)

    def rows(call):
        """Each rank's numbers as a row, whatever their shapes."""

        def body(*args):
            leaves = jax.tree.leaves(derivative(call, *args))
            return jnp.concatenate([leaf.ravel() for leaf in leaves])[None]

        specs = (X_SPEC, W_SPEC) * 2
        return sharded(body, mesh, specs, P("tp", None), check_vma=check_vma)

    def result(call):
        if where == "inside":
            run = rows(call)
        else:
            f = sharded(call, mesh, out_specs=OUT_SPEC[op], check_vma=check_vma)
            run = functools.partial(derivative, f)
        return jax.block_until_ready(jax.jit(run)(x, w, *tangents))

    before = host_calls(workspace)
    ours = result(lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host"))
    assert host_calls(workspace) > before
    assert_trees_equal(ours, result(lambda x, w: DEFINITION[op](x, w, "tp")))


@pytest.mark.parametrize("wide", [None, jnp.float32])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("op", OPS)
def test_sixteen_bit_operands(op, dtype, wide, mesh, workspace):
    """Values, gradients and gradients of each entry of a batch have the right dtypes."""
    x, w = (a.astype(dtype) for a in operands(10))
    out = OUT_SPEC[op]

    def results(call, **options):
        body = lambda x, w: call(x, w, "tp", preferred_element_type=wide, **options)
        f = sharded(body, mesh, out_specs=out)

        def loss(x, w):
            y = f(x, w).astype(jnp.float32)
            return jnp.sum(jax.lax.stop_gradient(jnp.sign(y)) * y)

        gradient = jax.grad(loss, (0, 1))
        each = jax.vmap(gradient, (0, None))(jnp.stack([x, -x]), w)
        return f(x, w), gradient(x, w), each

    run = jax.jit(lambda: results(OURS[op], workspace=workspace, path="host"))
    ours, wanted = run(), jax.jit(lambda: results(DEFINITION[op]))()
    assert_trees_equal(ours, wanted)
    assert ours[0].dtype == (wide or dtype)
    assert {g.dtype for g in jax.tree.leaves(ours[1:])} == {np.dtype(dtype)}


@pytest.mark.parametrize("op", OPS)
def test_cotangent_wider_than_the_operands(op, mesh, workspace):
    """bfloat16 operands, a float32 result: the cotangent is rounded once, to bfloat16."""
    x, w = (a.astype(jnp.bfloat16) for a in operands())
    y = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
    ct = np.random.default_rng(5).standard_normal(y.shape).astype(np.float32)
    f = sharded(
        lambda x, w: OURS[op](
            x,
            w,
            "tp",
            workspace=workspace,
            path="host",
            preferred_element_type=jnp.float32,
        ),
        mesh,
        out_specs=OUT_SPEC[op],
    )
    value, pullback = jax.vjp(f, x, w)
    assert value.dtype == jnp.float32
    rounded = ct.astype(jnp.bfloat16).astype(np.float64)
    for gradient, truth in zip(
        pullback(ct),
        (rounded @ np.asarray(w, np.float64).T, np.asarray(x, np.float64).T @ rounded),
        strict=True,
    ):
        assert gradient.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            np.asarray(gradient, np.float64), truth, rtol=2**-8, atol=1e-5
        )


def test_integer_and_zero_tangents(mesh, workspace):
    """One operand differentiated: the other's tangent is zero, an integer's is float0."""
    ours, expected = pair("gemm_all_reduce", mesh, workspace)
    x, w = operands()
    for argument in (0, 1):
        gradient = lambda f, a=argument: jax.grad(lambda *p: jnp.sum(f(*p) ** 2), a)
        assert_trees_equal(gradient(ours)(x, w), gradient(expected)(x, w))
    scaled = lambda x, w, i: jnp.sum(ours(x, w) * i)
    gradient = jax.grad(scaled, (0, 2), allow_int=True)(x, w, jnp.int32(3))
    assert gradient[1].dtype == jax.dtypes.float0
    np.testing.assert_array_equal(gradient[0], jax.grad(scaled)(x, w, jnp.int32(3)))


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("m", [12, 10])
def test_no_stray_collective_in_the_gradient(m, check_vma, where, mesh, workspace):
    """One call in the place of the definition's collective; the backward pass is its own."""
    x, w = operands(m)
    for op, target, lax_name in [
        ("gemm_reduce_scatter", RS_TARGET, "reduce-scatter"),
        ("gemm_all_reduce", AR_TARGET, "all-reduce"),
    ]:

        def counts(call, op=op):
            def value_and_grads(function):
                def both(x, w):
                    y, pullback = jax.vjp(function, x, w)
                    return y, pullback(jnp.sign(y))

                return both

            out = OUT_SPEC[op]
            if where == "outside":
                f = sharded(call, mesh, out_specs=out, check_vma=check_vma)
                return hlo_counts(compiled_text(value_and_grads(f), x, w))
            out = (out, (X_SPEC, W_SPEC))
            f = sharded(value_and_grads(call), mesh, out_specs=out, check_vma=check_vma)
            return hlo_counts(compiled_text(f, x, w))

        ours = counts(
            lambda x, w, op=op: OURS[op](x, w, "tp", workspace=workspace, path="host")
        )
        assert ours.pop(target) == 1
        ours[lax_name] += 1
        assert ours == counts(lambda x, w, op=op: DEFINITION[op](x, w, "tp"))
