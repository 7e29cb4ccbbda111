"""The kernels inside compiled programs, one GPU a rank; the same on CPU devices.

What is refused, what other operations of a program see, and what a program may do with
calls. Situations are numbered as in the project's list of public bug reports.
"""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from rank_rigs import ON_GPU, rigs

import jax_symm
from jax_symm.errors import SymmUnsupportedError, SymmValueError

SPECS = (P(None, "tp"), P("tp", None))
on_devices = pytest.mark.parametrize(
    "rig", [*rigs(4, kinds=("cpu",)).args[1], *rigs(1, 2, 4, kinds=("gpus",)).args[1]]
)


def program(rig, body, out_specs, in_specs=SPECS, check_vma=True):
    return jax.jit(
        jax.shard_map(
            body,
            mesh=rig.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=check_vma,
        )
    )


def calls(rig, path=None):
    """The two operations on the rig's workspace."""
    options = {"workspace": rig.workspace, "path": path or rig.path}

    def scatter(x, w, **more):
        return jax_symm.gemm_reduce_scatter(x, w, "tp", **options, **more)

    def reduce(x, w, **more):
        return jax_symm.gemm_all_reduce(x, w, "tp", **options, **more)

    return scatter, reduce


def small(rng, *shape):
    return rng.integers(-1, 2, shape).astype(jnp.bfloat16)


def product(x, w):
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64)


def exact(actual, expected):
    np.testing.assert_array_equal(np.asarray(actual, np.float64), expected)


@on_devices
@pytest.mark.parametrize(("m", "k", "n"), [(0, 64, 24), (8, 64, 0), (8, 0, 24)])
def test_empty_operands(rig, m, k, n, open_rig):
    """C04: a right result, never a hang, and the next call is right."""
    rig = open_rig(*rig, max_m=8, n=24)
    ranks = rig.world_size
    for op, call in zip(
        ("reduce_scatter", "all_reduce"), calls(rig, "auto"), strict=True
    ):
        body = lambda x, w, call=call: call(x[:, :k], w[:k])
        out = P("tp") if op == "reduce_scatter" else P()
        x = np.ones((m, ranks * max(k, 1)), jnp.bfloat16)
        w = np.ones((ranks * max(k, 1), n), jnp.bfloat16)
        y = program(rig, body, out)(rig.put(x, SPECS[0]), rig.put(w, SPECS[1]))
        exact(y, np.full((m, n), float(ranks * k)))
        x, w = map(np.asarray, oracle.rank_bits(ranks, 8, 24, jnp.bfloat16, k_local=8))
        exact(rig.call(op, x, w), np.full((8, 24), 2.0**ranks - 1))


@on_devices
def test_strided_and_transposed_operands(rig, open_rig):
    """C05: layouts are pinned at the custom call, so a view is never permuted data."""
    rig = open_rig(*rig, max_m=64, n=32)
    scatter, reduce = calls(rig)
    rng = np.random.default_rng(0)
    y, v = small(rng, 16, 2 * 16 * rig.world_size), small(rng, 24, 16 * rig.world_size)

    def body(y, v):
        x, w = y[:, ::2], -v.T
        return scatter(x, w), reduce(x.T.T, w), reduce(w.T, x.T)

    specs = P(None, "tp"), P(None, "tp")
    a, b, c = program(rig, body, (P("tp"), P(), P()), specs)(
        rig.put(y, specs[0]), rig.put(v, specs[1])
    )
    local = y.reshape(16, rig.world_size, 32)[:, :, ::2].reshape(16, -1)
    expected = product(local, -v.T)
    exact(a, expected)
    exact(b, expected)
    exact(c, expected.T)


@rigs(1, 2, kinds=("gpus",))
def test_what_no_kernel_covers(rig, open_rig):
    """C08, C09: refused at trace with the reason, and the calls after it work."""
    rig = open_rig(*rig, max_m=16, n=24)
    ranks = rig.world_size
    x, w = map(np.asarray, oracle.rank_bits(ranks, 16, 24, jnp.float32, k_local=8))
    with pytest.raises(SymmUnsupportedError, match="f32"):
        rig.call("all_reduce", x, w)
    exact(
        program(rig, calls(rig, "auto")[1], P())(
            rig.put(x, SPECS[0]), rig.put(w, SPECS[1])
        ),
        np.full((16, 24), 2.0**ranks - 1),
    )
    odd = [a.astype(jnp.bfloat16) for a in (x[:, ::8], w[::8])]
    with pytest.raises(SymmUnsupportedError, match="k per rank"):
        rig.call("all_reduce", *odd)
    large = np.ones((4096, x.shape[1]), jnp.bfloat16)
    with pytest.raises(SymmValueError, match="too small"):
        rig.call("all_reduce", large, w.astype(jnp.bfloat16))
    out = rig.call("all_reduce", x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))
    exact(out, np.full((16, 24), 2.0**ranks - 1))


@on_devices
def test_an_executable_run_again_and_again(rig, open_rig):
    """C15: an odd number of calls, new inputs each time, another program in between."""
    rig = open_rig(*rig, max_m=64, n=64)
    scatter, reduce = calls(rig)
    gather = lambda y: lax.all_gather(y, "tp", axis=0, tiled=True)
    three = program(
        rig,
        lambda x, w: gather(scatter(x, w)) + reduce(x, w) + reduce(-2 * x, w),
        P(),
        check_vma=False,
    )
    two = program(rig, lambda x, w: (reduce(x, w), scatter(x, w)), (P(), P("tp")))
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, w = small(rng, 48, 16 * rig.world_size), small(rng, 16 * rig.world_size, 64)
        if seed % 2:
            x[:, :16] = 0
        args = rig.put(x, SPECS[0]), rig.put(w, SPECS[1])
        exact(three(*args), np.zeros((48, 64)))
        for y in two(*args):
            exact(y, product(x, w))


@on_devices
def test_calls_without_data_between_them(rig, open_rig):
    """C16, C21: with XLA's own collectives among them."""
    kind, _ = rig
    rig = open_rig(*rig, max_m=64, n=64)
    scatter, reduce = calls(rig)

    def body(x, w):
        own = lax.psum(x @ w, "tp"), lax.psum_scatter(x @ w, "tp", tiled=True)
        return scatter(x, w) + scatter(x + 1, w), reduce(x, w) - reduce(x, w + 1), *own

    f = program(rig, body, (P("tp"), P(), P(), P("tp")))
    rng = np.random.default_rng(1)
    x, w = small(rng, 48, 8 * rig.world_size), small(rng, 8 * rig.world_size, 64)
    args = rig.put(x, SPECS[0]), rig.put(w, SPECS[1])
    for _ in range(50 if kind in ON_GPU else 5):
        a, b, c, d = f(*args)
        exact(a, product(x, w) + product(x + 1, w))
        exact(b, product(x, w) - product(x, w + 1))
        exact(c, product(x, w))
        exact(d, product(x, w))


@on_devices
def test_uniform_control_flow(rig, open_rig):
    """C24's good twins: cond, while, scan and switch with a predicate alike everywhere."""
    rig = open_rig(*rig, max_m=16, n=24)
    _, reduce = calls(rig)
    ranks = rig.world_size
    x, w = map(np.asarray, oracle.rank_bits(ranks, 16, 24, jnp.bfloat16, k_local=8))
    zeros = lambda x: jnp.zeros((16, 24), x.dtype)

    def cond(flag, x, w):
        return lax.cond(
            flag > 0, lambda: reduce(x, w), lambda: lax.psum(x @ w, "tp") * 0
        )

    def loop(flag, x, w):
        return lax.fori_loop(
            0, 3, lambda i, y: y + reduce(x * (i < 2).astype(x.dtype), w), zeros(x)
        )

    def scan(flag, x, w):
        step = lambda y, scale: (y + reduce(x * scale, w), None)
        return lax.scan(step, zeros(x), jnp.array([0, 1, 1], x.dtype))[0]

    def switch(flag, x, w):
        return lax.switch(flag, [lambda: reduce(x, w), lambda: 2 * reduce(x, w)])

    args = rig.put(x, SPECS[0]), rig.put(w, SPECS[1])
    for body, factor in ((cond, 1), (loop, 2), (scan, 2), (switch, 2)):
        y = program(rig, body, P(), (P(), *SPECS))(1, *args)
        exact(y, np.full((16, 24), factor * (2.0**ranks - 1)))


@on_devices
def test_gradients_against_lax(rig, open_rig):
    rig = open_rig(*rig, max_m=64, n=64)
    scatter, reduce = calls(rig)
    xla = calls(rig, "xla")
    rng = np.random.default_rng(2)
    ranks = rig.world_size
    args = (
        rig.put(small(rng, 4 * ranks + 1, 16 * ranks), SPECS[0]),
        rig.put(small(rng, 16 * ranks, 64), SPECS[1]),
    )
    for ours, theirs, out in ((scatter, xla[0], P("tp")), (reduce, xla[1], P())):

        def gradients(call, out=out):
            f = program(rig, call, out)
            weigh = lambda y: jnp.sum(jnp.float32(y) * (jnp.arange(64) % 3 - 1))
            return jax.jit(jax.grad(lambda x, w: weigh(f(x, w)), (0, 1)))(*args)

        for a, b in zip(gradients(ours), gradients(theirs), strict=True):
            exact(a, np.asarray(b, np.float64))


@on_devices
def test_multiprocessors_left_to_others(rig, open_rig):
    """The result does not depend on how many there are."""
    kind, ranks = rig
    mesh = open_rig(kind, ranks, max_m=16, n=24).mesh
    x, w = map(np.asarray, oracle.rank_bits(ranks, 300, 264, jnp.bfloat16, k_local=8))
    for margin in (0, 100, 131):
        with jax_symm.Workspace(
            mesh, "tp", max_m=320, n=264, multicast="never", sm_margin=margin
        ) as workspace:
            y = oracle.run(
                "all_reduce",
                x,
                w,
                mesh,
                "tp",
                workspace,
                path="host" if kind == "cpu" else "peer",
            )
            exact(y, np.full((300, 264), 2.0**ranks - 1))
    if kind in ON_GPU:
        with pytest.raises(SymmValueError, match="sm_margin: got 5000"):
            jax_symm.Workspace(
                mesh, "tp", max_m=320, n=264, multicast="never", sm_margin=5000
            )


@on_devices
@pytest.mark.parametrize("nbytes", [1, 2**21 - 1, 2**21, 2**21 + 1])
def test_raw_memory_of_odd_sizes(rig, nbytes, open_rig):
    """C31: every part is aligned for TMA, and the sizes are what was asked for."""
    rig = open_rig(*rig, max_m=16, n=24)
    buffers = [
        jax_symm.empty((nbytes,), np.uint8, mesh=rig.mesh, axis_name="tp")
        for _ in range(3)
    ]
    for buffer in buffers:
        handle = jax_symm.peer_rendezvous(buffer)
        for device in rig.mesh.devices:
            assert all(p % 128 == 0 for p in handle.at(device).buffer_ptrs)
            assert handle.array(device).shape == (nbytes,)
    for buffer in buffers:
        buffer.close()
