"""Loops, branches, rematerialisation and custom derivatives around one workspace."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    AR_SPEC,
    DEFINITION,
    OURS,
    X_SPEC,
    host_calls,
    integers,
    sharded,
)
from jax.ad_checkpoint import checkpoint_name

import jax_symm

SQUARE = (integers(0, (8, 16)), integers(1, (16, 16)))


def all_reduce(workspace):
    if workspace is None:
        return lambda x, w: DEFINITION["gemm_all_reduce"](x, w, "tp")
    return lambda x, w: OURS["gemm_all_reduce"](
        x, w, "tp", workspace=workspace, path="host"
    )


def my_columns(y):
    """The k-slice of a replicated result that this rank feeds to the next call."""
    width = y.shape[1] // jax.lax.axis_size("tp")
    start = jax.lax.axis_index("tp") * width
    return jax.lax.dynamic_slice_in_dim(y, start, width, 1)


def step(call, x, w):
    return my_columns(jnp.clip(call(x, w), -2, 2))


def scan(call, x, w, unroll=1):
    return jax.lax.scan(
        lambda c, _: (step(call, c, w), c.sum()), x, None, 4, unroll=unroll
    )[0]


def while_loop(call, x, w):
    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, step(call, c[1], w)), (0, x)
    )[1]


def fori_loop(call, x, w):
    return jax.lax.fori_loop(0, 3, lambda _, c: step(call, c, w), x)


def uniform_cond(call, x, w):
    positive = jax.lax.psum(x.sum(), "tp") > 0
    return jax.lax.cond(positive, lambda: step(call, x, w), lambda: step(call, -x, w))


def switch(call, x, w):
    index = jnp.int32(jax.lax.psum(1, "tp")) % 3
    return jax.lax.switch(index, [lambda k=k: step(call, k * x, w) for k in (1, 2, 3)])


def mapped(call, x, w):
    return jax.lax.map(lambda c: step(call, c, w), jnp.stack([x, 2 * x])).sum(0)


def checkpoint(call, x, w, policy=None):
    block = jax.checkpoint(lambda c: jnp.tanh(step(call, c, w)), policy=policy)
    return block(block(x))


def custom_vjp(call, x, w):
    @jax.custom_vjp
    def double(x, w):
        return 2 * step(call, x, w)

    def forward(x, w):
        y, pullback = jax.vjp(functools.partial(step, call), x, w)
        return 2 * y, pullback

    double.defvjp(forward, lambda pullback, ct: pullback(2 * ct))
    return double(x, w)


policies = jax.checkpoint_policies
PROGRAMS = {
    "scan": scan,
    "scan unroll=2": functools.partial(scan, unroll=2),
    "while_loop": while_loop,
    "fori_loop": fori_loop,
    "cond": uniform_cond,
    "switch": switch,
    "lax.map": mapped,
    "checkpoint": checkpoint,
    "checkpoint dots_saveable": functools.partial(
        checkpoint, policy=policies.dots_saveable
    ),
    "checkpoint nothing_saveable": functools.partial(
        checkpoint, policy=policies.nothing_saveable
    ),
    "custom_vjp": custom_vjp,
}
NOT_REVERSIBLE = {"while_loop"}
NO_FORWARD_MODE = {"custom_vjp"}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_the_definition(name, check_vma, mesh, workspace):
    def outputs(workspace):
        body = functools.partial(PROGRAMS[name], all_reduce(workspace))
        function = sharded(body, mesh, out_specs=X_SPEC, check_vma=check_vma)
        if name in NOT_REVERSIBLE:
            return jax.jit(function)(*SQUARE)
        loss = lambda x, w: (jnp.sum(function(x, w) ** 2), function(x, w))
        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*SQUARE)

    before = host_calls(workspace)
    ours, expected = outputs(workspace), outputs(None)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
        ours,
        expected,
    )
    assert host_calls(workspace) > before


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - NO_FORWARD_MODE))
def test_forward_mode(name, check_vma, mesh, workspace):
    def outputs(workspace):
        body = functools.partial(PROGRAMS[name], all_reduce(workspace))
        function = sharded(body, mesh, out_specs=X_SPEC, check_vma=check_vma)
        x, w = SQUARE
        return jax.jit(lambda x, w: jax.jvp(function, (x, w), (2 * x, w.T)))(x, w)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
        outputs(workspace),
        outputs(None),
    )


SAVED = {
    None: False,
    "nothing_saveable": False,
    "dots_saveable": False,
    "everything_saveable": True,
    "named": True,
}


@pytest.mark.parametrize("policy", SAVED)
def test_policies_decide_what_runs_again(policy, mesh, workspace):
    """As with `psum`: the backward pass repeats the call unless its result is saved."""
    named = policies.save_only_these_names("reduced")
    chosen = named if policy == "named" else getattr(policies, policy or "", None)

    def calls(call, name):
        block = lambda x, w: jnp.sin(checkpoint_name(call(x, w), "reduced"))
        body = lambda x, w: jax.checkpoint(block, policy=chosen)(x, w)
        function = sharded(body, mesh, out_specs=AR_SPEC)
        loss = lambda x, w: jnp.sum(function(x, w))
        text = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*SQUARE).as_text()
        return len(re.findall(name, text))

    ours = calls(all_reduce(workspace), r"custom_call @jax_symm\.gemm_all_reduce")
    assert ours == (1 if SAVED[policy] else 2)
    assert ours == calls(all_reduce(None), r"stablehlo\.all_reduce")


def test_captured_constant_in_a_scan(mesh, workspace):
    """Case C22: with x64 on, a float64 constant captured by the loop stays what it was."""
    ones = np.ones((8, 4), np.float64)

    def body(x, w):
        first = step(all_reduce(workspace), x, w)

        def layer(c, _):
            y = step(all_reduce(workspace), c, w)
            return (y * ones).astype(y.dtype), jnp.asarray(ones)

        return jax.lax.scan(layer, first, None, 4)

    specs = {"out_specs": (X_SPEC, jax.P(None, None, "tp")), "check_vma": False}
    with jax.enable_x64(True):
        carry, seen = jax.jit(sharded(body, mesh, **specs))(*SQUARE)
    x, w = (np.asarray(a) for a in SQUARE)
    for _ in range(5):
        x = np.clip(x @ w, -2, 2)
    np.testing.assert_array_equal(carry, x)
    assert seen.dtype == np.float64
    assert (np.asarray(seen) == 1).all()


def test_reduce_scatter_in_a_scan_over_layers(mesh, workspace):
    """Weights as scanned inputs, one layer a step, activations row-sharded between them."""
    x, ws = integers(0, (8, 16)), integers(1, (3, 16, 16))

    def layer(call, c, w):
        full = jax.lax.all_gather(c, "tp", axis=0, tiled=True)
        y = call(my_columns(full), w)
        return jnp.clip(y, -2, 2), None

    def run(call):
        body = lambda x, ws: jax.lax.scan(functools.partial(layer, call), x, ws)[0]
        specs = (jax.P("tp", None), jax.P(None, "tp", None))
        function = sharded(body, mesh, in_specs=specs, out_specs=jax.P("tp", None))
        return jax.jit(
            jax.value_and_grad(lambda *a: jnp.sum(function(*a) ** 2), (0, 1))
        )(x, ws)

    ours = lambda x, w: jax_symm.gemm_reduce_scatter(
        x, w, "tp", workspace=workspace, path="host"
    )
    expected = lambda x, w: DEFINITION["gemm_reduce_scatter"](x, w, "tp")
    jax.tree.map(np.testing.assert_array_equal, run(ours), run(expected))
