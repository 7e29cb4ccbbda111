"""The operations: `gemm` is public, `reference` is their definition in `jax.lax`."""
