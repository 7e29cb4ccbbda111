"""The README's example runs as written, on Explicit and on Auto axes, with small operands."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

README = pathlib.Path(__file__).parents[2] / "README.md"


def example():
    code = re.search(
        r"<!-- example -->\n```python\n(.*?)```", README.read_text(), re.S
    )[1]
    assert len(code.splitlines()) <= 15
    return code


@pytest.mark.parametrize("axis_type", [AxisType.Explicit, AxisType.Auto])
def test_example(axis_type):
    code = example().replace(
        '("tp",))', f'("tp",), axis_types=(AxisType.{axis_type.name},))', 1
    )
    code = code.replace("max_m=8192, n=7168", "max_m=64, n=24")
    rng = np.random.default_rng(0)
    x, w = rng.integers(-2, 3, (2, 16, 32)), rng.integers(-2, 3, (32, 24))
    names = {
        "x": jnp.asarray(x, jnp.bfloat16),
        "w": jnp.asarray(w, jnp.bfloat16),
        "AxisType": AxisType,
    }
    before = jax.sharding.get_abstract_mesh()
    try:
        exec(code, names)
        np.testing.assert_array_equal(names["y"].astype(jnp.float32), x @ w)
        assert sum(names["ws"].calls()["host"].values()) == 8
    finally:
        if "ws" in names:
            names["ws"].close()
        jax.set_mesh(None if before.empty else before)
