"""The measured table of where fusing pays, and what `auto` makes of it."""

import pytest
from test_paths import SPEC, kernels, plan

from jax_symm._workspace_request import WorkspaceRequest
from jax_symm.ops import _crossover

__all__ = ["kernels"]  # a fixture, which every test here needs


def row(m, ratio, **changes):
    common = {"arch": "sm90", "op": "gemm_all_reduce", "path": "peer", "R": 8}
    layer = {"n": 7168, "k": 1536, "ratio_to": "xla_dot_psum"}
    return {**common, **layer, "m": m, "ratio": ratio, **changes}


@pytest.fixture
def measured(monkeypatch):
    def install(*layers):
        monkeypatch.setattr(_crossover, "table", lambda: layers)

    return install


def test_a_layer_pays_from_where_it_never_loses_again():
    ratios = {512: 1.1, 1024: 0.9, 2048: 1.0, 4096: 1.2}
    (entry,) = _crossover.from_rows([row(m, ratio) for m, ratio in ratios.items()])
    assert entry == {
        **{"arch": "sm90", "op": "all_reduce", "R": 8, "n": 7168, "k": 1536},
        "least_m": 2048,
    }


def test_a_layer_that_loses_at_last_never_pays():
    (entry,) = _crossover.from_rows([row(512, 1.1), row(4096, 0.99)])
    assert entry["least_m"] is None


def test_only_push_between_gpus_counts():
    others = [
        row(512, 2.0, path="peer_pull"),
        row(512, 2.0, ratio_to="xla_gemm_plus_reduction"),
        row(512, 2.0, op="reduction", path="xla", ratio_to="copy"),
    ]
    assert _crossover.from_rows(others) == []


def test_the_table_has_each_layer_once():
    keys = [tuple(one[c] for c in _crossover._COLUMNS) for one in _crossover.table()]
    assert len(set(keys)) == len(keys) > 0
    assert {one["arch"] for one in _crossover.table()} == {
        "sm90"
    }  # run on nothing else
    assert all(
        one["least_m"] is None or one["least_m"] > 0 for one in _crossover.table()
    )


def test_what_was_not_measured_is_predicted(measured):
    measured()
    assert _crossover.find("sm90", "all_reduce", 8, 7168, 1536) is None
    assert "predicted" in plan().reason


def test_a_layer_speaks_for_its_neighbours_only(measured):
    layer = {"n": 4096, "k": 2048, "least_m": 512}
    measured({"arch": "sm90", "op": "all_reduce", "R": 8, **layer})
    assert _crossover.find("sm90", "all_reduce", 8, 8192, 4096) == (4096, 2048, 512)
    assert _crossover.find("sm90", "all_reduce", 8, 8192, 4104) is None
    assert _crossover.find("sm90", "all_reduce", 4, 4096, 2048) is None


def test_auto_follows_the_nearest_layer(measured):
    common = {"arch": "sm90", "op": "reduce_scatter", "R": SPEC.world_size}
    measured(
        {**common, "n": 7168, "k": 1536, "least_m": 4096},
        {**common, "n": 1024, "k": 1536, "least_m": None},
    )
    assert plan(m=8192, n=7168, k=2048).path == "peer"
    below = plan(m=2048, n=7168, k=2048)
    assert (below.path, below.should_run) == ("xla", False)
    assert "measured" in below.reason
    assert "m = 4096" in below.reason
    assert plan(m=8192, n=1024, k=2048).path == "xla"
    assert plan(m=2048, path="peer").path == "peer"
    # Other operations are still predicted.
    assert "predicted" in plan("all_reduce").reason


def test_processes_compare_their_tables(measured):
    """Another table could take another path, so a workspace wants one for all."""
    request = WorkspaceRequest(8, 8, "float32", ("all_reduce",), "auto", None, 1.0, 0)
    own = request.alike()
    measured({"arch": "sm90", "op": "all_reduce", "R": 8, "n": 8, "k": 8, "least_m": 1})
    other = request.alike()
    assert {key for key in own if own[key] != other[key]} == {"crossover"}
