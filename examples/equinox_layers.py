"""A tensor-parallel MLP as Equinox modules; the workspace is a field of a layer.

Trains a few steps and compares with the same model unsharded.

    python examples/equinox_layers.py
"""

import os

os.environ.setdefault("PJRT_NPROC", "64")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm

jax.config.update("jax_num_cpu_devices", 4)

D_MODEL, D_FF, TOKENS, STEPS = 32, 64, 24, 5


class ColumnParallelLinear(eqx.Module):
    """y = all_gather(x) @ w: tokens sharded -> features sharded."""

    weight: jax.Array  # [d_in, d_out / R]
    axis_name: str = eqx.field(static=True)

    def __call__(self, x):
        return jax_symm.all_gather_gemm(x, self.weight, self.axis_name)


class RowParallelLinear(eqx.Module):
    """y = reduce_scatter(x @ w): features sharded -> tokens sharded."""

    weight: jax.Array  # [d_in / R, d_out]
    axis_name: str = eqx.field(static=True)
    workspace: jax_symm.Workspace | None = None  # a static pytree node: no leaves

    def __call__(self, x):
        return jax_symm.gemm_reduce_scatter(
            x, self.weight, self.axis_name, workspace=self.workspace
        )


class MLP(eqx.Module):
    up: ColumnParallelLinear
    down: RowParallelLinear

    def __init__(self, key, axis_name, workspace=None):
        up, down = jax.random.split(key)
        self.up = ColumnParallelLinear(
            jax.random.normal(up, (D_MODEL, D_FF)) / D_MODEL**0.5, axis_name
        )
        self.down = RowParallelLinear(
            jax.random.normal(down, (D_FF, D_MODEL)) / D_FF**0.5, axis_name, workspace
        )

    def __call__(self, x):
        return self.down(jax.nn.silu(self.up(x)))


def weight_specs(model):
    """The partition spec of every leaf of the model."""
    specs = jax.tree.map(lambda _: P(), model)
    return eqx.tree_at(
        lambda m: (m.up.weight, m.down.weight), specs, (P(None, "tp"), P("tp", None))
    )


def train(model, x, target, apply):
    optimizer = optax.sgd(0.1, momentum=0.9)
    state = optimizer.init(model)

    @jax.jit
    def step(model, state):
        loss, grads = jax.value_and_grad(
            lambda model: jnp.mean((apply(model, x) - target) ** 2)
        )(model)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(model, updates), state, loss

    losses = []
    for _ in range(STEPS):
        model, state, loss = step(model, state)
        losses.append(float(loss))
    return model, losses


def unsharded(model, x):
    return jax.nn.silu(x @ model.up.weight) @ model.down.weight


def main():
    mesh = jax.make_mesh((4,), ("tp",), axis_types=(AxisType.Auto,))
    x, target = jax.random.normal(jax.random.key(1), (2, TOKENS, D_MODEL))
    with jax_symm.Workspace(
        mesh, "tp", max_m=TOKENS, n=D_MODEL, dtype=jnp.float32
    ) as workspace:
        model = MLP(jax.random.key(0), "tp", workspace)
        specs = weight_specs(model)

        def tensor_parallel(model, x):
            return jax.shard_map(
                lambda model, x: model(x),
                mesh=mesh,
                in_specs=(specs, P("tp", None)),
                out_specs=P("tp", None),
            )(model, x)

        placed = jax.tree.map(
            lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)),
            model,
            specs,
        )
        trained, losses = train(placed, x, target, tensor_parallel)
        reference, reference_losses = train(model, x, target, unsharded)
        np.testing.assert_allclose(losses, reference_losses, rtol=1e-5)
        for ours, expected in zip(
            jax.tree.leaves(trained), jax.tree.leaves(reference), strict=True
        ):
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
        calls = sum(workspace.calls()["host"].values())
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS} steps, as unsharded")
    print(f"calls on the host path over all ranks: {calls}")


if __name__ == "__main__":
    main()
