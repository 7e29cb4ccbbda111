"""A row-parallel linear layer as a Flax NNX module.

The module holds its kernel and the workspace. It initialises outside shard_map like any
NNX module; without a workspace the op takes the xla path.

    python examples/flax_nnx_layers.py
"""

import os

os.environ.setdefault("PJRT_NPROC", "64")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_symm

jax.config.update("jax_num_cpu_devices", 4)

D_MODEL, D_FF, TOKENS, STEPS = 32, 64, 24, 5


class RowParallelLinear(nnx.Module):
    """y = psum(x @ kernel): features sharded -> replicated."""

    def __init__(self, d_in, d_out, axis_name, *, workspace=None, rngs):
        self.kernel = nnx.Param(
            nnx.initializers.lecun_normal()(rngs.params(), (d_in, d_out))
        )
        self.axis_name = axis_name
        self.workspace = workspace

    def __call__(self, x):
        return jax_symm.gemm_all_reduce(
            x, self.kernel[...], self.axis_name, workspace=self.workspace
        )


class MLP(nnx.Module):
    def __init__(self, axis_name, *, workspace=None, rngs):
        self.up = nnx.Linear(D_MODEL, D_FF, use_bias=False, rngs=rngs)
        self.down = RowParallelLinear(
            D_FF, D_MODEL, axis_name, workspace=workspace, rngs=rngs
        )

    def __call__(self, x):
        return self.down(nnx.silu(self.up(x)))


def specs_of(params):
    """Up is split by columns, down by rows."""

    def spec(path, _):
        return P(None, "tp") if "up" in jax.tree_util.keystr(path) else P("tp", None)

    return jax.tree_util.tree_map_with_path(spec, params)


def train(params, x, target, apply):
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(
            lambda params: jnp.mean((apply(params, x) - target) ** 2)
        )(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for _ in range(STEPS):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    return losses


def main():
    mesh = jax.make_mesh((4,), ("tp",), axis_types=(AxisType.Auto,))
    x, target = jax.random.normal(jax.random.key(1), (2, TOKENS, D_MODEL))
    with jax_symm.Workspace(
        mesh, "tp", max_m=TOKENS, n=D_MODEL, dtype=jnp.float32
    ) as workspace:
        model = MLP("tp", workspace=workspace, rngs=nnx.Rngs(0))
        graph, params = nnx.split(model)

        def tensor_parallel(params, x):
            return jax.shard_map(
                lambda params, x: nnx.merge(graph, params)(x),
                mesh=mesh,
                in_specs=(specs_of(params), P()),
                out_specs=P(),
            )(params, x)

        def unsharded(params, x):
            leaves = dict(
                (jax.tree_util.keystr(path), leaf)
                for path, leaf in jax.tree_util.tree_leaves_with_path(params)
            )
            up = next(leaf for name, leaf in leaves.items() if "up" in name)
            down = next(leaf for name, leaf in leaves.items() if "down" in name)
            return nnx.silu(x @ up) @ down

        losses = train(params, x, target, tensor_parallel)
        np.testing.assert_allclose(
            losses, train(params, x, target, unsharded), rtol=1e-4
        )
        calls = sum(workspace.calls()["host"].values())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS} steps, as unsharded")
    print(f"calls on the host path over all ranks: {calls}")


if __name__ == "__main__":
    main()
