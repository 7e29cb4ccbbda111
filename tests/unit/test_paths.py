"""The choice of path on GPUs, from shapes and the facts of the workspace alone."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from jax_symm import _native
from jax_symm.ops import _paths, _rules

SPEC = _rules.WorkspaceSpec(
    name="tp-0",
    axes=("tp",),
    device_ids=((0, 1, 2, 3, 4, 5, 6, 7),),
    platform="gpu",
    capacity_bytes=8192 * 7168 * 2,
    ops=_rules.OPS,
    no_multicast=("asked for with multicast='never'",),
    capability="9.0",
)


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """A build that holds kernels, wherever the tests run."""
    monkeypatch.setattr(_native.module(), "cuda_kernel_architectures", lambda: ["sm90"])


def plan(
    op="reduce_scatter", m=8192, n=7168, k=1536, path="auto", spec=SPEC, **options
):
    dtype = options.pop("dtype", jnp.bfloat16)
    x = jax.ShapeDtypeStruct((m, k), dtype)
    w = jax.ShapeDtypeStruct((k, n), dtype)
    problem = _rules.make_problem(op, x, w, spec.world_size, **options)
    return _paths.choose(problem, "gpu", spec, path)


def test_large_calls_are_fused():
    chosen = plan()
    assert (chosen.path, chosen.can_run, chosen.should_run) == ("peer", True, True)
    assert "jax_symm_sm90_bf16_kn_" in chosen.config["kernel"]
    assert chosen.config["link_us"] > 0


def test_the_margin_is_taken_off_the_grid():
    assert plan().config["tile"].endswith("ctas=132")
    spared = plan(spec=dataclasses.replace(SPEC, sm_margin=20))
    assert spared.config["tile"].endswith("ctas=112")


def test_small_calls_are_left_to_xla():
    chosen = plan(m=64)
    assert (chosen.path, chosen.can_run, chosen.should_run) == ("xla", True, False)
    assert "m = 64" in chosen.reason
    insisted = plan(m=64, path="peer")
    assert (insisted.path, insisted.can_run) == ("peer", True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"k": 1540}, "k per rank"),
        ({"n": 7164}, "n must be"),
        ({"dtype": jnp.float32, "m": 4096}, "f32"),
        ({"m": 0}, "empty"),
    ],
)
def test_what_no_kernel_covers_goes_to_xla_with_the_reason(options, word):
    chosen = plan(**options)
    assert (chosen.path, chosen.can_run) == ("xla", True)
    assert word in chosen.reason
    assert not plan(path="peer", **options).can_run


def test_multicast_needs_the_agreement():
    refused = plan(path="multicast")
    assert not refused.can_run
    assert "multicast='never'" in refused.reason
    agreed = dataclasses.replace(SPEC, no_multicast=(None,))
    assert plan("all_reduce", spec=agreed).path == "multicast"
    # A reduce-scatter sends less by peer stores, so it does not use what it has.
    assert plan(spec=agreed).path == "peer"


def test_pairs_never_gain_from_multicast():
    pair = dataclasses.replace(SPEC, device_ids=((0, 1),), no_multicast=(None,))
    assert plan("all_reduce", spec=pair).path == "peer"


def test_wide_results_need_room():
    chosen = plan("all_reduce", preferred_element_type=jnp.float32, path="peer")
    assert not chosen.can_run
    assert "does not fit" in chosen.reason
    roomy = dataclasses.replace(SPEC, capacity_bytes=2 * SPEC.capacity_bytes)
    assert plan("all_reduce", preferred_element_type=jnp.float32, spec=roomy).can_run


@pytest.mark.parametrize("capability", ["8.0", ""])
def test_other_gpus_take_xla(capability):
    chosen = plan(spec=dataclasses.replace(SPEC, capability=capability))
    assert chosen.path == "xla"
    assert "compute capability" in chosen.reason


def test_a_build_without_kernels_says_so(monkeypatch):
    monkeypatch.setattr(_native.module(), "cuda_kernel_architectures", list)
    assert "no kernels" in plan().reason


def test_the_plan_is_of_the_path_asked_for():
    agreed = dataclasses.replace(SPEC, no_multicast=(None,))
    reducers = {"peer": "push", "peer_pull": "pull", "multicast": "multicast"}
    for path, reducer in reducers.items():
        for op in _rules.OPS:
            chosen = plan(op, spec=agreed, path=path)
            assert (chosen.path, chosen.can_run) == (path, True)
            assert f"_{reducer}_" in chosen.config["kernel"]


def test_what_the_rules_accept_fits_the_memory():
    """The two checks of capacity, in bytes and in the layout of the kernels, agree."""
    for op in _rules.OPS:
        for m in (1024, 1000, 8192):
            wide = {"m": m, "preferred_element_type": jnp.float32}
            x = jax.ShapeDtypeStruct((m, 1536), jnp.bfloat16)
            w = jax.ShapeDtypeStruct((1536, 7168), jnp.bfloat16)
            problem = _rules.make_problem(
                op, x, w, 8, preferred_element_type=jnp.float32
            )
            need = problem.need_bytes_on("gpu")
            spec = dataclasses.replace(SPEC, capacity_bytes=need)
            assert plan(op, spec=spec, path="peer", **wide).can_run
            if op == "all_reduce":
                less = dataclasses.replace(SPEC, capacity_bytes=need - 8)
                refused = plan(op, spec=less, path="peer", **wide)
                assert not refused.can_run
                assert "does not fit" in refused.reason
