"""C24: branches that differ between ranks end in an error, uniform ones are right."""

import jax
import jax.numpy as jnp
import launcher
import numpy as np
import oracle
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from worlds import world

import jax_symm

TIMEOUT_S = 3

MISSING = {"branch": [0], "trips": [0], "failing": [2]}


@pytest.mark.parametrize("place", [world("cpu", 1, 4), world("gpus", 1, 4)])
@pytest.mark.parametrize("which", sorted(MISSING))
def test_divergent(which, place):
    """Within the time-out, naming operation, axis and the ranks that did not come."""
    (rank,) = place.launch("alone", "diverge", argument=[which, TIMEOUT_S])
    results = rank.results
    assert results["error"], launcher.logs([rank])
    assert results["seconds"] < TIMEOUT_S + (20 if place.on_gpu else 2)
    texts = [results["error"], *(results["check"] or [])]
    # A kernel knows of no operation and no axis; it does know whom it waited for.
    ours = [t for t in texts if "gemm_all_reduce" in t]
    if place.on_gpu:
        named = [f"rank {r} (process 0" for r in MISSING[which]]
        # Before a program's first launch it is counted who has come.
        named.append("ranks that group 0 has in this process began")
        assert any(name in text for text in texts for name in named), texts
        assert results["again"]
        return
    assert ours, texts
    for text in ours:
        assert "axis 'tp'" in text
        assert all(f"rank {r} (process 0" in text for r in MISSING[which]), text
    assert results["again"]


def test_uniform_twins_are_right(mesh_of, open_workspace):
    """The operands change with the iteration, or XLA would take the call out of it."""
    mesh = mesh_of(tp=4)
    workspace = open_workspace(mesh, max_m=8, n=8, dtype=jnp.float32)
    x, w = oracle.rank_bits(4, 8, 8, jnp.float32)

    def call(x, w):
        return jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace)

    def cond(flag, x, w):
        return lax.cond(flag > 0, lambda: call(x, w), lambda: lax.psum(x @ w, "tp") * 0)

    def loop(flag, x, w):
        zeros = jnp.zeros((8, 8), x.dtype)
        return lax.fori_loop(0, 3, lambda i, y: y + call(x * (i < 2), w), zeros)

    def while_(flag, x, w):
        def body(state):
            i, y = state
            return i + 1, y + call(x * (i < 2), w)

        zeros = jnp.zeros((8, 8), x.dtype)
        return lax.while_loop(lambda s: s[0] < 3, body, (0, zeros))[1]

    def switch(flag, x, w):
        return lax.switch(flag, [lambda: call(x, w), lambda: 2 * call(x, w)])

    for body, factor in ((cond, 1), (loop, 2), (while_, 2), (switch, 2)):
        f = jax.jit(
            jax.shard_map(
                body,
                mesh=mesh,
                in_specs=(P(), P(None, "tp"), P("tp", None)),
                out_specs=P(),
            )
        )
        np.testing.assert_array_equal(f(1, x, w), np.full((8, 8), 15.0 * factor))
    assert oracle.host_calls(workspace) == 4 * (1 + 3 + 3 + 1)
