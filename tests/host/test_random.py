"""Random problems on the host path against numpy float64."""

import collections

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh

CASES_PER_MESH = 34
MESHES = [
    ((1,), ("tp",), "tp"),
    ((2,), ("tp",), "tp"),
    ((3,), ("tp",), "tp"),
    ((5,), ("tp",), "tp"),
    ((8,), ("tp",), "tp"),
    ((2, 2), ("dp", "tp"), "tp"),
    ((2, 3), ("dp", "tp"), "dp"),
    ((2, 4), ("dp", "tp"), ("dp", "tp")),
    ((4, 2), ("dp", "tp"), ("tp", "dp")),
]
EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}

ran = collections.Counter()


def extents(largest):
    """Sizes, a few of them 0: at the end of a range hypothesis would favour it."""
    sizes = [*range(1, largest + 1)]
    return st.sampled_from([*sizes, *sizes, 0, *sizes])


@st.composite
def problems(draw):
    ndim = draw(st.integers(2, 4))
    leading = tuple(draw(extents(6)) for _ in range(ndim - 1))
    return {
        "op": draw(st.sampled_from(["reduce_scatter", "all_reduce"])),
        "reversed_devices": draw(st.booleans()),
        "leading": leading,
        "k_local": draw(st.integers(1, 9)),
        "n": draw(extents(17)),
        "dtype": draw(st.sampled_from(sorted(EPS))),
        "w_layout": draw(st.sampled_from(["kn", "nk"])),
        "scatter_dimension": draw(st.integers(-ndim, -2)),
        "wide": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**20)),
    }


@pytest.fixture(scope="module")
def workspaces(cpus):
    """One workspace per mesh, large enough for every problem."""
    import jax_symm

    opened = {}
    for number, (sizes, names, axis) in enumerate(MESHES):
        for reverse in (False, True):
            devices = np.asarray(cpus[: int(np.prod(sizes))][:: -1 if reverse else 1])
            types = (AxisType.Auto,) * len(sizes)
            mesh = Mesh(devices.reshape(sizes), names, axis_types=types)
            workspace = jax_symm.Workspace(
                mesh,
                axis,
                max_m=6 * 6 * 14,
                n=17,
                dtype=jnp.float32,
                name=f"random-{number}-{reverse}",
                timeout_s=60,
            )
            opened[number, reverse] = mesh, axis, workspace
    yield opened
    for _, _, workspace in opened.values():
        workspace.close()


@settings(
    max_examples=CASES_PER_MESH,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(problem=problems())
def check(workspaces, number, problem):
    op, dtype = problem["op"], problem["dtype"]
    mesh, axis, workspace = workspaces[number, problem["reversed_devices"]]
    world_size = workspace.spec.world_size
    rng = np.random.default_rng(problem["seed"])
    k, n = world_size * problem["k_local"], problem["n"]
    x = rng.standard_normal((*problem["leading"], k)).astype(dtype)
    w = rng.standard_normal((k, n) if problem["w_layout"] == "kn" else (n, k))
    w = w.astype(dtype)
    options = {
        "w_layout": problem["w_layout"],
        "preferred_element_type": jnp.float32 if problem["wide"] else None,
    }
    if op == "reduce_scatter":
        options["scatter_dimension"] = problem["scatter_dimension"]
    before = oracle.host_calls(workspace)
    y = oracle.run(op, x, w, mesh, axis, workspace, path="host", **options)
    ran["cases"] += 1
    ran["calls"] += oracle.host_calls(workspace) - before
    ran["empty"] += 0 in y.shape
    if 0 not in y.shape:
        expected_calls = mesh.devices.size
        assert oracle.host_calls(workspace) - before == expected_calls
    wanted = oracle.expected(op, x, w, world_size, **options)
    magnitude = oracle.expected(op, abs(x), abs(w), world_size, **options)
    # Each partial and the sum are rounded once to the operands' dtype, which moves a
    # value by eps times its size at most; the f32 sums by far less.
    bound = 2 * EPS[dtype] * magnitude + (k + world_size) * 2.0**-24 * magnitude
    assert y.shape == wanted.shape
    assert np.all(np.abs(np.asarray(y, np.float64) - wanted) <= bound + 1e-30)


@pytest.mark.parametrize("number", range(len(MESHES)))
def test_random_problems(workspaces, number):
    """300 problems on all meshes, and the counters prove that they ran here."""
    assert len(MESHES) * CASES_PER_MESH >= 300
    ran.clear()
    seed(number)(check)(workspaces, number)
    assert ran["cases"] >= CASES_PER_MESH
    # Every case that has a result ran on the host path, on all its devices.
    assert ran["calls"] >= ran["cases"] - ran["empty"]
    assert ran["empty"] < ran["cases"] / 2, ran
