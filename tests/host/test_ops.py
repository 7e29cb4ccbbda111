"""The two operations on the host path: what they compute, bit for bit where exact."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P

import jax_symm

OPS = ["reduce_scatter", "all_reduce"]
DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32]


def exact(actual, wanted):
    np.testing.assert_array_equal(np.asarray(actual, np.float64), wanted)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("preferred", [None, jnp.float32])
def test_dtypes(op, dtype, preferred, mesh8, run_host):
    rng = np.random.default_rng(0)
    x = oracle.small_integers(rng, (3, 11, 32), dtype)
    w = oracle.small_integers(rng, (32, 24), dtype)
    y = run_host(op, x, w, mesh8, preferred_element_type=preferred)
    assert y.dtype == np.dtype(preferred or dtype)
    exact(y, oracle.expected(op, x, w, 8))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("check_vma", [True, False])
def test_both_settings_of_check_vma(op, check_vma, mesh8, run_host):
    rng = np.random.default_rng(1)
    x = oracle.small_integers(rng, (16, 32), jnp.float32)
    w = oracle.small_integers(rng, (32, 8), jnp.float32)
    y = run_host(op, x, w, mesh8, check_vma=check_vma)
    exact(y, oracle.expected(op, x, w, 8))


@pytest.mark.parametrize("op", OPS)
def test_weight_stored_as_nk(op, mesh8, run_host):
    rng = np.random.default_rng(2)
    x = oracle.small_integers(rng, (9, 32), jnp.bfloat16)
    w = oracle.small_integers(rng, (24, 32), jnp.bfloat16)
    y = run_host(op, x, w, mesh8, w_layout="nk")
    exact(y, oracle.expected(op, x, w, 8, w_layout="nk"))


@pytest.mark.parametrize("dimension", [0, 1, 2, -2, -3, -4])
def test_any_dimension_but_the_last_is_scattered(dimension, mesh_of, run_host):
    """C06: no dimension is taken for another, and the ratio to the definition is 1."""
    rng = np.random.default_rng(3)
    x = oracle.small_integers(rng, (5, 6, 7, 16), jnp.float32)
    w = oracle.small_integers(rng, (16, 3), jnp.float32)
    mesh = mesh_of(tp=4)
    y = run_host("reduce_scatter", x, w, mesh, scatter_dimension=dimension)
    exact(y, oracle.expected("reduce_scatter", x, w, 4, scatter_dimension=dimension))


@pytest.mark.parametrize("op", OPS)
def test_one_workspace_for_every_m(op, mesh_of, open_workspace, run_host):
    """C01: sized for the largest m, then called with others; nothing stale shows."""
    mesh = mesh_of(tp=4)
    workspace = open_workspace(mesh, max_m=1024, n=64, dtype=jnp.bfloat16)
    nbytes = workspace.nbytes
    for m in [1024, 16, 4, 128, 4, 1024, 12, 1, 0, 7]:
        x, w = oracle.rank_bits(4, m, 64, jnp.bfloat16)
        sign = jnp.asarray(np.where(np.arange(m) % 3, 1, -1)[:, None], x.dtype)
        y = run_host(op, x * sign, w, mesh, workspace=workspace)
        exact(y, oracle.expected(op, x * sign, w, 4))
    assert workspace.nbytes == nbytes


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("path", ["host", "xla"])
def test_every_path_writes_every_row(op, path, mesh8, open_workspace):
    """C02: all paths give 255 everywhere, and the counter says which one ran."""
    x, w = oracle.rank_bits(8, 64, 40, jnp.bfloat16)
    workspace = open_workspace(mesh8, max_m=64, n=40)
    y = oracle.run(op, x, w, mesh8, "tp", workspace, path=path)
    exact(y, np.full((64, 40), 255.0))
    assert oracle.host_calls(workspace) == (8 if path == "host" else 0)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 6, 7])
def test_any_world_size(op, world_size, mesh_of, run_host):
    """C03: sizes that peers refuse."""
    x, w = oracle.rank_bits(world_size, 2 * world_size + 1, 40, jnp.bfloat16)
    y = run_host(op, x, w, mesh_of(tp=world_size))
    exact(y, oracle.expected(op, x, w, world_size))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("m", "k", "n"), [(0, 64, 24), (8, 64, 0), (8, 0, 24)])
def test_empty_operands(op, m, k, n, mesh_of, open_workspace):
    """C04: a right result, never a hang, and the next call is right."""
    mesh = mesh_of(tp=4)
    workspace = open_workspace(mesh, max_m=8, n=24, dtype=jnp.float32)
    rng = np.random.default_rng(4)
    x = oracle.small_integers(rng, (m, 4 * max(k, 1)), jnp.float32)
    w = oracle.small_integers(rng, (4 * max(k, 1), n), jnp.float32)
    call = getattr(jax_symm, f"gemm_{op}")

    def body(x, w):
        return call(x[:, :k], w[:k], "tp", workspace=workspace)

    f = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=P("tp") if op == "reduce_scatter" else P(),
        )
    )
    y = np.asarray(f(x, w))
    wanted = oracle.expected(op, x, w, 4) if k else np.zeros((m, n))
    exact(y, wanted)
    x, w = oracle.rank_bits(4, 8, 24, jnp.float32)
    exact(oracle.run(op, x, w, mesh, "tp", workspace), oracle.expected(op, x, w, 4))


def test_strided_and_transposed_operands(mesh_of, open_workspace):
    """C05: layouts are pinned at the custom call, so a view is never permuted data."""
    mesh = mesh_of(tp=4)
    workspace = open_workspace(mesh, max_m=16, n=24, dtype=jnp.float32)

    def body(y, v):
        x, w = y[:, ::2], jnp.cos(v).T
        a = jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=workspace)
        b = jax_symm.gemm_all_reduce(x.T.T, w, "tp", workspace=workspace)
        c = jax_symm.gemm_all_reduce(w.T, x.T, "tp", workspace=workspace)
        return a, b, c

    y = np.arange(16 * 128, dtype=np.float32).reshape(16, 128) % 7
    v = np.arange(24 * 64, dtype=np.float32).reshape(24, 64) % 5
    f = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P(None, "tp")),
            out_specs=(P("tp"), P(), P()),
        )
    )
    a, b, c = map(np.asarray, f(y, v))
    wanted = y[:, ::2].astype(np.float64) @ np.cos(v.astype(np.float64)).T
    for actual, reference in ((a, wanted), (b, wanted), (c, wanted.T)):
        np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("op", OPS)
def test_the_sum_is_in_f32(op, mesh8, run_host):
    """C10: a running sum in bfloat16 gives 3; in any order of ranks it must be 6."""
    partials = np.array([256, 1, 1, 1, -256, 1, 1, 1.0])
    for order in (np.arange(8), np.arange(8)[::-1], [1, 4, 2, 0, 7, 5, 6, 3]):
        x = jnp.ones((16, 8), jnp.bfloat16)
        w = jnp.asarray(partials[order][:, None] * np.ones((1, 24)), jnp.bfloat16)
        exact(run_host(op, x, w, mesh8), np.full((16, 24), 6.0))


def test_one_rounding_of_partials_and_one_of_the_sum(mesh8, run_host):
    """The stated numerics, bit for bit: f32 in rank order between two roundings."""
    rng = np.random.default_rng(5)
    x = jnp.asarray(rng.standard_normal((24, 8)), jnp.bfloat16)
    w = jnp.asarray(rng.standard_normal((8, 40)), jnp.bfloat16)
    y = run_host("all_reduce", x, w, mesh8)
    total = np.zeros((24, 40), np.float32)
    for r in range(8):
        outer = np.float32(x[:, r : r + 1]) * np.float32(w[r : r + 1])
        total += outer.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(y, total.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("op", OPS)
def test_bits_do_not_depend_on_history(op, mesh_of, open_workspace):
    """C11: the same bits after other allocations, and on every rank."""
    mesh = mesh_of(tp=4)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((64, 64)), jnp.bfloat16)
    w = jnp.asarray(rng.standard_normal((64, 128)), jnp.bfloat16)
    workspace = open_workspace(mesh, max_m=64, n=128)
    call = getattr(jax_symm, f"gemm_{op}")
    f = jax.jit(
        jax.shard_map(
            lambda x, w: call(x, w, "tp", workspace=workspace)[None],
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=P("tp"),
            check_vma=False,
        )
    )
    first = np.asarray(f(x, w))
    for size in (1, 4097, 12345):
        jax_symm.empty((size,), np.float32, mesh=mesh, axis_name="tp").close()
    for _ in range(100):
        np.testing.assert_array_equal(np.asarray(f(x, w)), first)
    if op == "all_reduce":
        for rank in range(1, 4):
            np.testing.assert_array_equal(first[rank], first[0])


@pytest.mark.parametrize("op", OPS)
def test_special_values_spread_only_where_they_should(op, mesh_of, run_host):
    """C12: NaN and Inf appear exactly where the definition has them."""
    x = np.ones((18, 16), np.float32)
    x[3, 5], x[7, 1], x[0] = np.nan, np.inf, -0.0
    x, w = jnp.asarray(x, jnp.bfloat16), jnp.ones((16, 24), jnp.bfloat16)
    y = np.asarray(run_host(op, x, w, mesh_of(tp=4)), np.float32)
    wanted = oracle.expected(op, x, w, 4)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(y), np.isinf(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(y[finite], wanted[finite])


def test_half_overflow_is_the_sum_of_rounded_partials(mesh_of, run_host):
    """Sums above the largest float16 become Inf once, at the last rounding."""
    x = jnp.full((8, 2), 1, jnp.float16)
    w = jnp.asarray([[60000.0], [-60000.0 + 32]], jnp.float16) * jnp.ones((1, 4), "f2")
    exact(run_host("all_reduce", x, w, mesh_of(tp=2)), np.full((8, 4), 32.0))


def test_results_never_alias_the_workspace(mesh8, open_workspace):
    x, w = oracle.rank_bits(8, 16, 8, jnp.float32)
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    kept = oracle.run("all_reduce", x, w, mesh8, "tp", workspace)
    for scale in range(10):
        oracle.run("all_reduce", x * scale, w, mesh8, "tp", workspace)
    exact(kept, np.full((16, 8), 255.0))


def test_eager_shard_map(mesh8, open_workspace):
    x, w = oracle.rank_bits(8, 16, 8, jnp.float32)
    workspace = open_workspace(mesh8, max_m=16, n=8, dtype=jnp.float32)
    for op in OPS:
        y = oracle.run(op, x, w, mesh8, "tp", workspace, jit=False)
        exact(y, np.full((16, 8), 255.0))
    assert oracle.host_calls(workspace) == 16


@pytest.mark.parametrize("axis", ["tp", "dp", ("dp", "tp"), ("tp", "dp")])
@pytest.mark.parametrize("op", OPS)
def test_several_groups_and_tuples_of_axes(op, axis, mesh_of, open_workspace):
    """C32: groups along one axis, the other, and both, one after the other."""
    mesh = mesh_of(dp=2, tp=4)
    rng = np.random.default_rng(6)
    x = oracle.small_integers(rng, (10, 32), jnp.float32)
    w = oracle.small_integers(rng, (32, 6), jnp.float32)
    workspace = open_workspace(mesh, axis, max_m=16, n=6, dtype=jnp.float32)
    y = oracle.run(op, x, w, mesh, axis, workspace, path="host")
    exact(y, oracle.expected(op, x, w, workspace.spec.world_size))
    assert oracle.host_calls(workspace) == 8


@pytest.mark.parametrize("op", OPS)
def test_permuted_devices_and_sub_meshes(op, mesh_of, cpus, run_host):
    rng = np.random.default_rng(7)
    x = oracle.small_integers(rng, (9, 12), jnp.float32)
    w = oracle.small_integers(rng, (12, 6), jnp.float32)
    for devices in ([cpus[i] for i in (5, 1, 6, 2)], [cpus[i] for i in (7, 3, 4)]):
        mesh = mesh_of(tp=len(devices), devices=devices)
        y = run_host(op, x, w, mesh)
        exact(y, oracle.expected(op, x, w, len(devices)))


def test_empty_axis_is_a_world_of_one(mesh_of, open_workspace):
    """C20: as psum_scatter over () under shard_map."""
    mesh = mesh_of(tp=4)
    workspace = open_workspace(mesh, (), max_m=8, n=6, dtype=jnp.float32)
    rng = np.random.default_rng(8)
    x = oracle.small_integers(rng, (8, 4), jnp.float32)
    w = oracle.small_integers(rng, (4, 6), jnp.float32)
    for op in OPS:
        call = getattr(jax_symm, f"gemm_{op}")
        for given in (None, workspace):
            f = jax.shard_map(
                lambda x, w, c=call, ws=given: c(x, w, (), workspace=ws),
                mesh=mesh,
                in_specs=(P("tp"), P()),
                out_specs=P("tp"),
            )
            exact(jax.jit(f)(x, w), np.asarray(x, np.float64) @ np.asarray(w))
    assert oracle.host_calls(workspace) == 8
