"""Derivatives under both settings of check_vma, against the unsharded product."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jax_symm
from jax_symm import reference

M, K, N = 13, 24, 10


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, M, K)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((K, N)), jnp.float32)
    return x, w


def sharded(call, mesh, check_vma, op, w_layout="kn"):
    return jax.shard_map(
        call,
        mesh=mesh,
        in_specs=(P(None, None, "tp"), oracle.spec_of_w("tp", w_layout)),
        out_specs=P(None, "tp") if op == "reduce_scatter" else P(),
        check_vma=check_vma,
    )


def loss_of(f):
    return lambda x, w: jnp.sum(jnp.sin(f(x, w)[:, :M]))


@pytest.mark.parametrize("op", ["reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("w_layout", ["kn", "nk"])
def test_outside_shard_map(op, check_vma, w_layout, operands, mesh8, open_workspace):
    x, w = operands
    w = w if w_layout == "kn" else w.T
    workspace = open_workspace(mesh8, max_m=64, n=32, dtype=jnp.float32)
    call = functools.partial(
        getattr(jax_symm, f"gemm_{op}"),
        axis_name="tp",
        workspace=workspace,
        w_layout=w_layout,
    )
    f = sharded(lambda x, w: call(x, w), mesh8, check_vma, op, w_layout)
    before = oracle.host_calls(workspace)
    grads = jax.jit(jax.grad(loss_of(f), argnums=(0, 1)))(x, w)
    jax.block_until_ready(grads)
    assert oracle.host_calls(workspace) > before
    product = (lambda x, w: x @ w) if w_layout == "kn" else (lambda x, w: x @ w.T)
    wanted = jax.grad(loss_of(product), argnums=(0, 1))(x, w)
    for got, want in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_shard_map(op, check_vma, operands, mesh8, open_workspace):
    """grad within the body, as the definition in lax has it."""
    x, w = operands
    workspace = open_workspace(mesh8, max_m=64, n=32, dtype=jnp.float32)

    def gradients(call):
        def body(x, w):
            return jax.grad(lambda x, w: jnp.sum(jnp.sin(call(x, w))), (0, 1))(x, w)

        return jax.jit(
            jax.shard_map(
                body,
                mesh=mesh8,
                in_specs=(P(None, None, "tp"), P("tp", None)),
                out_specs=(P(None, None, "tp"), P("tp", None)),
                check_vma=check_vma,
            )
        )(x, w)

    name = f"gemm_{op}"
    ours = gradients(
        lambda x, w: getattr(jax_symm, name)(x, w, "tp", workspace=workspace)
    )
    definition = gradients(lambda x, w: getattr(reference, name)(x, w, "tp"))
    for got, want in zip(ours, definition, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
def test_replicated_weight(check_vma, operands, mesh_of, open_workspace):
    """The data-parallel axis shares the weight: its gradient is summed over it."""
    x, w = operands
    mesh = mesh_of(dp=2, tp=4)
    workspace = open_workspace(mesh, max_m=64, n=32, dtype=jnp.float32)
    f = jax.shard_map(
        lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace),
        mesh=mesh,
        in_specs=(P("dp", None, "tp"), P("tp", None)),
        out_specs=P("dp"),
        check_vma=check_vma,
    )
    grads = jax.jit(jax.grad(loss_of(f), argnums=(0, 1)))(x, w)
    wanted = jax.grad(loss_of(lambda x, w: x @ w), argnums=(0, 1))(x, w)
    for got, want in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
def test_the_pair_is_closed_under_transposition(check_vma, mesh8, open_workspace):
    """The transpose of all_gather_gemm runs our reduce_scatter, rows padded or not."""
    rng = np.random.default_rng(1)
    workspace = open_workspace(mesh8, max_m=64, n=32, dtype=jnp.float32)
    x = jnp.asarray(rng.standard_normal((2, 16, 12)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((12, 16)), jnp.float32)
    for size in (16, 13, 9):
        f = jax.shard_map(
            lambda x, w, size=size: jax_symm.all_gather_gemm(
                x, w, "tp", workspace=workspace, size=size
            ),
            mesh=mesh8,
            in_specs=(P(None, "tp"), P(None, "tp")),
            out_specs=P(None, None, "tp"),
            check_vma=check_vma,
        )
        before = oracle.host_calls(workspace)
        loss = jax.value_and_grad(lambda x, w, f=f: jnp.sum(jnp.sin(f(x, w))), (0, 1))
        value, grads = jax.block_until_ready(jax.jit(loss)(x, w))
        assert oracle.host_calls(workspace) == before + 8

        def plain(x, w, size=size):
            return jnp.sum(jnp.sin(x[:, :size] @ w))

        want_value, want = jax.value_and_grad(plain, (0, 1))(x, w)
        np.testing.assert_allclose(value, want_value, rtol=1e-4, atol=1e-4)
        for got, wanted in zip(grads, want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["reduce_scatter", "all_reduce"])
def test_higher_orders(op, mesh_of, open_workspace):
    mesh = mesh_of(tp=2)
    workspace = open_workspace(mesh, max_m=64, n=32, dtype=jnp.float32)
    call = getattr(jax_symm, f"gemm_{op}")
    f = sharded(lambda x, w: call(x, w, "tp", workspace=workspace), mesh, True, op)
    rng = np.random.default_rng(2)
    x = jnp.asarray(rng.standard_normal((1, 3, 4)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((4, 3)), jnp.float32)
    check_grads(jax.jit(lambda x, w: jnp.sin(f(x, w))), (x, w), order=2, rtol=5e-2)


def test_one_all_gather_serves_both_gradients(operands, mesh8, open_workspace):
    x, w = operands
    workspace = open_workspace(mesh8, max_m=64, n=32, dtype=jnp.float32)
    f = sharded(
        lambda x, w: jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=workspace),
        mesh8,
        True,
        "reduce_scatter",
    )
    lowered = jax.jit(jax.grad(loss_of(f), argnums=(0, 1))).lower(x, w)
    text = lowered.compile().as_text()
    assert text.count(" all-gather(") + text.count(" all-gather-start(") == 1
    for stray in (" all-reduce(", " reduce-scatter(", " all-to-all("):
        assert stray not in text


def test_explicit_mesh(operands, mesh_of, open_workspace):
    x, w = operands
    mesh = mesh_of(AxisType.Explicit, tp=4)
    workspace = open_workspace(mesh, max_m=64, n=32, dtype=jnp.float32)
    with jax.set_mesh(mesh):
        f = jax.shard_map(
            lambda x, w: jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=workspace),
            out_specs=P(None, "tp"),
        )
        x = oracle.put(x, mesh, P(None, None, "tp"))
        w = oracle.put(w, mesh, P("tp", None))
        gx, gw = jax.jit(jax.grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1)))(x, w)
        assert jax.typeof(gx).sharding.spec == P(None, None, "tp")
        assert jax.typeof(gw).sharding.spec == P("tp", None)
