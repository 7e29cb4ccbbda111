"""Random small programs of our ops and lax collectives, against the definition in our place.

A program is a list of steps over one [rows, width] value that is varying over the axis; each
step keeps that shape and type, so steps compose freely. Values stay small integers, so values
and gradients must agree bit for bit.
"""

import functools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    DEFINITION,
    OURS,
    WORLD_SIZE,
    host_calls,
    integers,
    mesh_of,
    sharded,
)
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm import reference

ROWS, WIDTH = 8, 8
PROGRAMS_PER_STEP = 22


def wrap(y):
    """Back into small integers with a derivative of one."""
    return y - jax.lax.stop_gradient(4 * jnp.round(y / 4))


def varying(y):
    if "tp" in jax.typeof(y).manual_axis_type.varying:
        return y
    return jax.lax.pcast(y, "tp", to="varying")


def all_reduce(ops, x, w):
    return varying(ops["gemm_all_reduce"](x, w, "tp"))


def reduce_scatter(ops, x, w):
    y = ops["gemm_reduce_scatter"](x, w, "tp")
    return jax.lax.all_gather(y, "tp", axis=0, tiled=True)


def scatter_columns_first(ops, x, w):
    y = ops["gemm_reduce_scatter"](x[None], w, "tp")
    return jnp.tile(y[0], (WORLD_SIZE, 1))


def gather(ops, x, w):
    y = ops["all_gather_gemm"](x, w, "tp")
    return jax.lax.psum_scatter(y, "tp", tiled=True)


def fan_out(ops, x, w):
    return all_reduce(ops, x, w) + all_reduce(ops, x, jnp.flip(w, 0)) - x


def vmapped(ops, x, w):
    both = jax.vmap(lambda x: all_reduce(ops, x, w))(jnp.stack([x, -x]))
    return both[0] - both[1]


def vmapped_weights(ops, x, w):
    return jax.vmap(lambda w: all_reduce(ops, x, w))(jnp.stack([w, w.T])).sum(0)


def scanned(ops, x, w):
    return jax.lax.scan(lambda c, _: (wrap(all_reduce(ops, c, w)), None), x, None, 2)[0]


def branch(ops, x, w):
    uniform = jax.lax.psum(jax.lax.stop_gradient(x).sum(), "tp") > 0
    return jax.lax.cond(uniform, lambda: all_reduce(ops, x, w), lambda: 2 * x)


def rematerialised(ops, x, w):
    return jax.checkpoint(functools.partial(all_reduce, ops))(x, w)


def psum(ops, x, w):
    return varying(jax.lax.psum(x, "tp"))


def psum_scatter(ops, x, w):
    y = jax.lax.psum_scatter(x, "tp", tiled=True)
    return jax.lax.all_gather(y, "tp", axis=0, tiled=True)


def permute(ops, x, w):
    return jax.lax.ppermute(
        x, "tp", [(i, (i + 1) % WORLD_SIZE) for i in range(WORLD_SIZE)]
    )


def by_rank(ops, x, w):
    return x * (jax.lax.axis_index("tp") % 2)


def local(ops, x, w):
    return x @ w


STEPS = {
    step.__name__: step
    for step in [
        all_reduce, reduce_scatter, scatter_columns_first, gather, fan_out, vmapped, vmapped_weights,
        scanned, branch, rematerialised, psum, psum_scatter, permute, by_rank, local,
    ]
}  # fmt: skip
OURS_ONLY = list(STEPS)[:10]


@st.composite
def surroundings(draw):
    """The steps before and those after the one that a program is to hold."""
    names = draw(st.lists(st.sampled_from(list(STEPS)), max_size=3))
    position = draw(st.integers(0, len(names)))
    return tuple(names[:position]), tuple(names[position:])


@functools.cache
def runner(mesh, names, ours, check_vma):
    ops = {**DEFINITION, "all_gather_gemm": reference.all_gather_gemm}
    if ours is not None:
        calls = {**OURS, "all_gather_gemm": jax_symm.all_gather_gemm}
        ops = {
            k: functools.partial(f, workspace=ours, path="host")
            for k, f in calls.items()
        }

    def body(x, ws):
        for name, w in zip(names, ws, strict=False):
            x = wrap(varying(STEPS[name](ops, x, w)))
        return x

    specs = (P("tp", None), P(None, None, None))
    function = sharded(body, mesh, specs, P("tp", None), check_vma=check_vma)

    def value_and_grads(x, ws):
        y, pullback = jax.vjp(function, x, ws)
        return y, pullback(jnp.sign(y))

    return jax.jit(value_and_grads)


@pytest.fixture(scope="module")
def random_mesh():
    return mesh_of()


@pytest.fixture(scope="module")
def random_workspace(random_mesh):
    with jax_symm.Workspace(
        random_mesh, "tp", max_m=4 * ROWS, n=WIDTH, dtype="float32"
    ) as workspace:
        yield workspace


@settings(
    max_examples=PROGRAMS_PER_STEP,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(around=surroundings())
def check(mesh, workspace, seen, step, around):
    names = (*around[0], step, *around[1])
    # Not drawn, or programs would be the same but for these.
    number = zlib.crc32(" ".join(names).encode())
    check_vma, data_seed = number % 2 == 0, number % 10
    seen.add(names)
    x = integers(data_seed, (WORLD_SIZE * ROWS, WIDTH))
    ws = integers(data_seed + 100, (4, WIDTH, WIDTH))
    before = host_calls(workspace)
    ours = runner(mesh, names, workspace, check_vma)(x, ws)
    expected = runner(mesh, names, None, check_vma)(x, ws)
    jax.tree.map(np.testing.assert_array_equal, ours, expected)
    if not any(name == "branch" for name in names):
        assert host_calls(workspace) > before


@pytest.mark.parametrize("step", OURS_ONLY)
def test_equals_the_definition(random_mesh, random_workspace, step):
    """200 different programs in all, and no step of ours is missed by chance."""
    seen = set()
    seed(OURS_ONLY.index(step))(check)(random_mesh, random_workspace, seen, step)
    assert len(seen) * len(OURS_ONLY) >= 200
