"""Shapes, dtypes, capacity and the choice of a path, without a device."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_symm.errors import (
    SymmStateError,
    SymmTypeError,
    SymmUnsupportedError,
    SymmValueError,
)
from jax_symm.ops import _rules

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass
class Operand:
    shape: tuple
    dtype: object = BF16
    weak_type: bool = False


def problem(op="reduce_scatter", x=(8, 4), w=(4, 6), world_size=4, **options):
    return _rules.make_problem(op, Operand(x), Operand(w), world_size, **options)


def spec(**changes):
    facts = {
        "name": "tp-0",
        "axes": ("tp",),
        "device_ids": (tuple(range(4)),),
        "platform": "cpu",
        "capacity_bytes": 1 << 20,
        "ops": ("reduce_scatter", "all_reduce"),
        "no_multicast": ("",),
    }
    return _rules.WorkspaceSpec(**{**facts, **changes})


def test_shapes_of_reduce_scatter():
    p = problem(x=(2, 13, 4))
    assert p.out_shape == (2, 4, 6)
    assert (p.batch, p.rows, p.shard_rows, p.n, p.k) == (2, 13, 4, 6, 4)


def test_dimensions_behind_the_scattered_one_fold_into_rows():
    p = problem(x=(5, 3, 2, 4), scatter_dimension=-4)
    assert p.out_shape == (2, 3, 2, 6)
    assert (p.batch, p.rows, p.shard_rows) == (1, 30, 12)


def test_shapes_of_all_reduce():
    p = problem("all_reduce", x=(3, 5, 4))
    assert p.out_shape == (3, 5, 6)
    assert (p.batch, p.rows, p.shard_rows) == (1, 15, 4)


def test_weight_layout():
    assert problem(w=(6, 4), w_layout="nk").n == 6


@given(
    leading=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    dimension=st.integers(0, 3),
    world_size=st.integers(1, 9),
    k=st.integers(0, 3),
    n=st.integers(0, 4),
)
def test_every_row_has_one_owner(leading, dimension, world_size, k, n):
    dimension %= len(leading)
    p = problem(
        x=(*leading, k), w=(k, n), world_size=world_size, scatter_dimension=dimension
    )
    shape = p.product_shape[:-1]
    index = np.indices(shape)[dimension].reshape(-1)
    rows = np.arange(index.size)
    if index.size:
        owners = rows % p.rows // p.shard_rows
        np.testing.assert_array_equal(owners, index // p.shard_size)
    assert p.batch * p.rows * n == np.prod(p.product_shape)
    assert p.batch * p.shard_rows * n == np.prod(p.out_shape)
    negative = dimension - len(leading) - 1
    assert p == problem(
        x=(*leading, k), w=(k, n), world_size=world_size, scatter_dimension=negative
    )


@given(world_size=st.integers(1, 9), m=st.integers(0, 40), n=st.integers(0, 9))
def test_a_workspace_holds_the_call_it_is_sized_for(world_size, m, n):
    capacity = _rules.capacity_bytes(world_size, m, n, BF16)
    for op in _rules.OPS:
        p = problem(op, x=(m, 3), w=(3, n), world_size=world_size)
        assert p.need_bytes <= capacity


@pytest.mark.parametrize("dimension", [1, 2, -1, -3])
def test_bad_scatter_dimension(dimension):
    """C06, C20: negative dimensions are normalised, the contracted one is refused."""
    with pytest.raises(SymmValueError, match=f"scatter_dimension: got {dimension}"):
        problem(scatter_dimension=dimension)


@pytest.mark.parametrize(
    ("x", "w", "text"),
    [
        ((4,), (4, 6), "x: got shape (4,)"),
        ((8, 4), (4, 6, 1), "w: got shape (4, 6, 1)"),
        ((8, 4), (5, 6), "k_local = 4, w has shape (5, 6) with k_local = 5"),
    ],
)
def test_bad_shapes(x, w, text):
    """C08."""
    with pytest.raises(SymmValueError) as raised:
        problem(x=x, w=w)
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (BF16, np.float32),
        (np.float16, BF16),
        (np.int8, np.int8),
        (np.float64, np.float64),
        (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
    ],
)
def test_bad_dtypes(x, w):
    """C08: both dtypes and shapes are in the text."""
    x, w = np.dtype(x), np.dtype(w)
    with pytest.raises(SymmTypeError) as raised:
        _rules.make_problem("all_reduce", Operand((8, 4), x), Operand((4, 6), w), 2)
    for part in (x.name, w.name, "(8, 4)", "(4, 6)"):
        assert part in str(raised.value)


def test_weak_type():
    with pytest.raises(SymmTypeError, match="x is weakly typed"):
        _rules.make_problem(
            "all_reduce", Operand((8, 4), weak_type=True), Operand((4, 6)), 2
        )


def test_result_dtype():
    assert problem(preferred_element_type=np.float32).out_dtype == np.float32
    assert problem().out_dtype == BF16
    with pytest.raises(SymmTypeError, match="preferred_element_type: got float16"):
        problem(preferred_element_type=np.float16)


@pytest.mark.parametrize("options", [{"w_layout": "mn"}, {"op": "mean"}])
def test_bad_options(options):
    with pytest.raises(SymmValueError, match="expected"):
        problem(**options)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"axes": ("dp",)}, "made for axis 'dp', but the call names axis 'tp'"),
        ({"device_ids": ((0, 1),)}, "made for 2 ranks, but axis 'tp' has 4"),
        ({"ops": ("all_reduce",)}, "create it with 'reduce_scatter' in ops"),
        ({"capacity_bytes": 95}, "needs 96 bytes, it has 95"),
    ],
)
def test_workspace_of_another_call(changes, text):
    """C09: need and have are in the text."""
    with pytest.raises(SymmValueError) as raised:
        _rules.check_workspace(problem(), ("tp",), spec(**changes))
    assert text in str(raised.value)


def test_a_wide_result_takes_more_of_a_workspace_on_gpus():
    """16-bit slots and a f32 result share the two halves of an all-reduce's memory."""
    wide = {"op": "all_reduce", "x": (7, 4), "preferred_element_type": np.float32}
    need = (8 * 6 * 2 + 7 * 6 * 4) // 2
    _rules.check_workspace(problem(**wide), ("tp",), spec(capacity_bytes=96))
    on_gpu = spec(platform="gpu", capacity_bytes=need)
    _rules.check_workspace(problem(**wide), ("tp",), on_gpu)
    _rules.check_workspace(problem("all_reduce"), ("tp",), on_gpu)
    less = dataclasses.replace(on_gpu, capacity_bytes=need - 1)
    with pytest.raises(SymmValueError, match=f"needs {need} bytes, it has {need - 1}"):
        _rules.check_workspace(problem(**wide), ("tp",), less)


def test_automatic_choice():
    assert _rules.choose(problem(), "cpu", spec()).path == "host"
    without = _rules.choose(problem(), "cpu", None)
    assert (without.path, without.can_run, without.should_run) == ("xla", True, False)
    assert "no workspace" in without.reason
    assert _rules.choose(problem(), "cuda", spec()).path == "xla"
    assert _rules.choose(problem(), "cpu", spec(platform="gpu")).path == "xla"


def test_forced_xla():
    plan = _rules.choose(problem(), "cpu", spec(), "xla")
    assert plan.path == "xla"
    assert plan.can_run
    assert plan.should_run


@pytest.mark.parametrize(
    ("path", "platform", "given", "error"),
    [
        ("host", "cpu", None, SymmStateError),
        ("host", "cuda", spec(), SymmUnsupportedError),
        ("peer", "cpu", spec(), SymmUnsupportedError),
        ("multicast", "cpu", spec(), SymmUnsupportedError),
    ],
)
def test_a_forced_path_never_falls_back(path, platform, given, error):
    plan = _rules.choose(problem(), platform, given, path)
    assert plan.path == path
    assert not plan.can_run
    with pytest.raises(error, match=f"path='{path}' cannot run: "):
        _rules.require(plan, "reduce_scatter", given)


def test_unknown_path():
    with pytest.raises(SymmValueError, match="path: got 'p2p'"):
        _rules.choose(problem(), "cpu", spec(), "p2p")
