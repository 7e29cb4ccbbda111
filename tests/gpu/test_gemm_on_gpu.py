"""The fused kernels through jit and shard_map, on as many GPUs as there are.

On one GPU the group has one rank, which shows operands, layouts, grids and the epilogue;
the exchange between ranks needs two. Data is exact: small integers, rank r's times 2**r.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm

pytestmark = pytest.mark.requires("gpu")

SHAPES = [(1, 8, 8), (128, 256, 64), (257, 712, 200), (1024, 512, 768), (1025, 384, 72)]


@pytest.fixture(scope="module")
def mesh():
    devices = np.asarray(jax.devices("gpu"), dtype=object)
    return Mesh(devices, ("tp",), axis_types=(AxisType.Auto,))


@pytest.fixture(scope="module")
def workspace(mesh):
    with jax_symm.Workspace(
        mesh, "tp", max_m=2048, n=1024, dtype=jnp.float32, multicast="never"
    ) as made:
        yield made


def operands(mesh, m, n, k, dtype, w_layout, seed=0):
    """x [m, k] and w, k split over the ranks; x scaled by 2**rank."""
    random = np.random.default_rng(seed)
    ranks = mesh.size
    x = random.integers(-2, 3, (m, ranks, k)) * 2.0 ** np.arange(ranks)[:, None]
    w = random.integers(-2, 3, (ranks * k, n))
    x = x.reshape(m, ranks * k)
    put = w if w_layout == "kn" else w.T
    w_spec = P("tp", None) if w_layout == "kn" else P(None, "tp")
    return (
        jax.device_put(x.astype(dtype), NamedSharding(mesh, P(None, "tp"))),
        jax.device_put(put.astype(dtype), NamedSharding(mesh, w_spec)),
        w_spec,
        exact(x, w, ranks, dtype),
    )


def exact(x, w, ranks, dtype):
    """Partials rounded once, summed in float32 in rank order; not yet rounded again."""
    total = 0.0
    for rank, (left, right) in enumerate(
        zip(np.split(x, ranks, 1), np.split(w, ranks), strict=True)
    ):
        partial = (left @ right).astype(dtype).astype(np.float32)
        total = partial if rank == 0 else total + partial
    return total


def compiled(mesh, op, w_spec, workspace, w_layout, out_dtype=None):
    call = getattr(jax_symm, f"gemm_{op}")

    def layer(x, w):
        return call(
            x,
            w,
            "tp",
            workspace=workspace,
            w_layout=w_layout,
            preferred_element_type=out_dtype,
            path="peer",
        )

    scatter = op == "reduce_scatter"
    return jax.jit(
        jax.shard_map(
            layer,
            mesh=mesh,
            in_specs=(P(None, "tp"), w_spec),
            out_specs=P("tp", None) if scatter else P(None, None),
        )
    )


@pytest.mark.parametrize("w_layout", ["kn", "nk"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("op", ["reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_bit_for_bit(mesh, workspace, shape, op, dtype, w_layout):
    m, n, k = shape
    x, w, w_spec, total = operands(mesh, m, n, k, dtype, w_layout)
    out = compiled(mesh, op, w_spec, workspace, w_layout)(x, w)
    rows = np.asarray(out)
    np.testing.assert_array_equal(rows[:m], total.astype(dtype))
    assert not rows[m:].astype(np.float32).any()


def test_float32_result_is_the_sum_before_rounding(mesh, workspace):
    x, w, w_spec, total = operands(mesh, 257, 712, 200, jnp.bfloat16, "kn")
    call = compiled(mesh, "reduce_scatter", w_spec, workspace, "kn", jnp.float32)
    np.testing.assert_array_equal(np.asarray(call(x, w))[:257], total)


def test_many_calls_of_changing_shape(mesh, workspace):
    """The epochs of one workspace, back to back, and twice the same bits."""
    calls = []
    for seed, (m, n, k) in enumerate(SHAPES):
        x, w, w_spec, total = operands(mesh, m, n, k, jnp.bfloat16, "kn", seed)
        call = compiled(mesh, "all_reduce", w_spec, workspace, "kn")
        calls.append((call, x, w, total.astype(jnp.bfloat16)))
    for repeat in range(40):
        for call, x, w, total in calls if repeat % 2 else reversed(calls):
            out = call(x, w)
            if repeat > 37:
                np.testing.assert_array_equal(np.asarray(out), total)
    workspace.check()
    assert all(count > 0 for count in workspace.calls()["peer"].values())


def test_random_data_against_float64(mesh, workspace):
    random = np.random.default_rng(1)
    k = mesh.size * 512
    x = random.standard_normal((512, k)).astype(jnp.bfloat16)
    w = random.standard_normal((k, 512)).astype(jnp.bfloat16)
    call = compiled(mesh, "reduce_scatter", P("tp", None), workspace, "kn")
    out = call(
        jax.device_put(x, NamedSharding(mesh, P(None, "tp"))),
        jax.device_put(w, NamedSharding(mesh, P("tp", None))),
    )
    wanted = x.astype(np.float64) @ w.astype(np.float64)
    error = np.linalg.norm(np.asarray(out).astype(np.float64) - wanted)
    assert error < 5e-3 * np.linalg.norm(wanted)


def test_another_device_order_is_an_error(mesh, workspace):
    """A call that gives a rank another index than the workspace did fails, on all."""
    if mesh.size == 1:
        pytest.skip("needs two GPUs: one device has one order")
    turned = Mesh(mesh.devices[::-1], ("tp",), axis_types=(AxisType.Auto,))
    with jax_symm.Workspace(
        mesh, "tp", max_m=256, n=256, name="turned", multicast="never"
    ) as made:
        x, w, w_spec, _ = operands(turned, 256, 256, 64, jnp.bfloat16, "kn")
        out = compiled(turned, "all_reduce", w_spec, made, "kn")(x, w)
        assert np.isnan(np.asarray(out).astype(np.float32)).all()
        with pytest.raises(jax_symm.errors.SymmStateError, match="device order"):
            made.check()
