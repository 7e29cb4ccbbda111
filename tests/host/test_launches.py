"""Many calls at once in one process: matched by call, whatever the order of arrival."""

import functools
import re

import jax
import jax.numpy as jnp
import launcher
import numpy as np
import oracle
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jax_symm

SPECS = (P(None, "tp"), P("tp", None))


@pytest.fixture
def workspace(mesh8, open_workspace):
    return open_workspace(mesh8, max_m=64, n=32, dtype=jnp.float32)


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    x = oracle.small_integers(rng, (24, 32), jnp.float32)
    return x, oracle.small_integers(rng, (32, 16), jnp.float32)


def operations(workspace):
    options = {"axis_name": "tp", "workspace": workspace, "path": "host"}
    return (
        functools.partial(jax_symm.gemm_reduce_scatter, **options),
        functools.partial(jax_symm.gemm_all_reduce, **options),
    )


def product(x, w):
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64)


def test_independent_operations(mesh8, workspace, operands):
    """C16, C21: four of ours with no data between them, and one of XLA's."""
    rs, ar = operations(workspace)
    x, w = operands

    def body(x, w):
        sums = rs(x, w) + rs(x + 1, w), ar(x, w) - ar(x, w + 1)
        return *sums, lax.psum(jnp.tanh(x) @ w, "tp")

    f = jax.jit(
        jax.shard_map(body, mesh=mesh8, in_specs=SPECS, out_specs=(P("tp"), P(), P()))
    )
    for _ in range(50):
        a, b, _ = f(x, w)
        np.testing.assert_array_equal(a, product(x + x + 1, w))
        np.testing.assert_array_equal(b, product(x, w) - product(x, w + 1))
    assert oracle.host_calls(workspace) == 50 * 4 * 8


def test_an_inner_jit_called_twice(mesh8, workspace, operands):
    rs, _ = operations(workspace)
    x, w = operands
    inner = jax.jit(rs)
    f = jax.jit(
        jax.shard_map(
            lambda x, w: inner(x, w) + 2 * inner(x + 1, w) + rs(x, w),
            mesh=mesh8,
            in_specs=SPECS,
            out_specs=P("tp"),
        )
    )
    for _ in range(20):
        np.testing.assert_array_equal(f(x, w), product(x + 2 * (x + 1) + x, w))


def test_every_call_has_a_number_of_its_own(mesh8, workspace, operands):
    """The same whenever a program is lowered, another in a program of another name."""
    _, ar = operations(workspace)

    def numbers(name):
        body = lambda x, w: ar(x, w) + ar(x + 1, w)
        body.__name__ = name
        f = jax.shard_map(body, mesh=mesh8, in_specs=SPECS, out_specs=P())
        text = jax.jit(f).lower(*operands).as_text()
        return re.findall(r"call_site = (\d+)", text)

    assert numbers("one") == numbers("one")
    assert len({*numbers("one"), *numbers("two")}) == 4


def test_a_scan_unrolled_by_two(mesh8, workspace, operands):
    _, ar = operations(workspace)
    x, _ = operands
    ws = oracle.small_integers(np.random.default_rng(1), (5, 32, 8), jnp.float32)

    def body(x, ws):
        def step(total, w):
            return total + ar(x, w), None

        return lax.scan(step, jnp.zeros((24, 8)), ws, unroll=2)[0]

    f = jax.jit(
        jax.shard_map(
            body, mesh=mesh8, in_specs=(SPECS[0], P(None, "tp", None)), out_specs=P()
        )
    )
    np.testing.assert_array_equal(f(x, ws), product(x, ws.sum(0)))


def test_mixed_with_collectives_of_xla(mesh8, workspace, operands):
    rs, ar = operations(workspace)
    x, w = operands

    def body(x, w):
        gathered = lax.all_gather(rs(x, w), "tp", axis=0, tiled=True)
        scattered = lax.psum_scatter(x @ w, "tp", tiled=True)
        summed = ar(x, w) + lax.psum(x @ w, "tp")
        return lax.pmax(gathered, "tp") + summed, scattered

    f = jax.jit(
        jax.shard_map(body, mesh=mesh8, in_specs=SPECS, out_specs=(P(), P("tp")))
    )
    for _ in range(20):
        a, b = f(x, w)
        np.testing.assert_array_equal(a, 3 * product(x, w))
        np.testing.assert_array_equal(b, product(x, w))


def test_two_hundred_launches_in_flight(mesh8, workspace, operands):
    x, w = operands
    programs = [
        jax.jit(jax.shard_map(f, mesh=mesh8, in_specs=SPECS, out_specs=out))
        for f, out in zip(operations(workspace), (P("tp"), P()), strict=True)
    ]
    for y in [f(x, w) for _ in range(100) for f in programs]:
        np.testing.assert_array_equal(y, product(x, w))
    assert oracle.host_calls(workspace) == 200 * 8


def test_two_workspaces_in_one_program(mesh8, open_workspace, operands):
    x, w = operands
    first, second = (
        open_workspace(mesh8, max_m=64, n=32, dtype=jnp.float32) for _ in range(2)
    )

    def body(x, w):
        a = operations(first)[1](x, w)
        return a + operations(second)[1](x + 1, w)

    f = jax.jit(jax.shard_map(body, mesh=mesh8, in_specs=SPECS, out_specs=P()))
    np.testing.assert_array_equal(f(x, w), product(x + x + 1, w))
    assert oracle.host_calls(first) == oracle.host_calls(second) == 8


@pytest.mark.parametrize("devices", [3, 6, 8])
def test_few_cores_suffice(devices):
    """C25: as many devices as you like on one core, and the smallest pool of threads."""
    launcher.launch(
        "alone",
        "few_cores",
        processes=1,
        devices=devices,
        argument=300 // devices,
        prefix=("taskset", "-c", "0"),
        env={"PJRT_NPROC": str(2 * devices)},
    )


def test_sixteen_ranks():
    """C03."""
    launcher.launch("alone", "all_ranks", processes=1, devices=16)
