"""Tile order, row ownership and the division of a workspace: the kernels' headers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_layout import Call, Collective, FaultKind, Reducer, Verdict

TILES = [(64, 64, 1), (128, 128, 1), (128, 256, 1), (128, 256, 2)]


@st.composite
def calls(draw: st.DrawFn, max_rows: int = 900) -> Call:
    ranks = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 72]))
    batch = draw(st.sampled_from([1, 2, 3]))
    rows = draw(st.integers(1, max_rows))
    least = -(-rows // ranks)
    return Call(
        ranks=ranks,
        rows=rows,
        batch=batch,
        n=8 * draw(st.integers(1, 100)),
        shard_rows=least + draw(st.sampled_from([0, 0, 0, 1, 5])),
        float32_output=draw(st.booleans()),
        reducer=draw(st.sampled_from(Reducer)),
        collective=draw(st.sampled_from(Collective)),
        tile=draw(st.sampled_from(TILES)),
        m_groups_per_band=draw(st.integers(1, 20)),
    )


def _owners(call: Call) -> np.ndarray:
    row = np.arange(call.total_rows)
    return row % call.rows // call.rows_per_shard


@settings(max_examples=150, deadline=None)
@given(calls())
def test_every_tile_is_visited_once(call):
    tile_m, tile_n, cluster = call.tile
    m_tiles = -(-call.total_rows // (tile_m * cluster)) * cluster
    n_tiles = -(-call.n // tile_n)
    visited = {tuple(tile) for tile in call.visits().tolist()}
    assert len(call.visits()) == m_tiles * n_tiles
    assert visited == {(m, n) for m in range(m_tiles) for n in range(n_tiles)}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("batch", [1, 2])
def test_neighbours_in_the_order_have_different_owners(ranks, batch):
    call = Call(
        ranks=ranks,
        rows=ranks * 512,
        batch=batch,
        n=1024,
        tile=(128, 256, 1),
        m_groups_per_band=ranks,
    )
    owner = _owners(call)[call.visits()[:, 0] * 128]
    assert (owner[1:] != owner[:-1]).all()
    # Within one column of a band every owner has its turn.
    assert all(
        sorted(owner[i : i + ranks]) == list(range(ranks))
        for i in range(0, len(owner), ranks)
    )


@settings(max_examples=150, deadline=None)
@given(calls(max_rows=200), st.data())
def test_rows_belong_to_the_owner_of_their_place_in_the_batch(call, data):
    places = call.places(0, [0] * call.ranks)
    row = np.arange(call.total_rows)
    in_batch = row % call.rows
    shard = call.rows_per_shard
    np.testing.assert_array_equal(places["owner"], _owners(call))
    np.testing.assert_array_equal(
        places["shard_row"], row // call.rows * shard + in_batch % shard
    )
    begin = data.draw(st.integers(0, call.total_rows - 1))
    end = data.draw(st.integers(begin + 1, min(begin + 140, call.total_rows)))
    for rank in range(call.ranks):
        mine = _owners(call)[begin:end] == rank
        assert call.owns(rank, begin, end) == (mine.any(), mine.all()), rank


@settings(max_examples=80, deadline=None)
@given(calls(max_rows=200))
def test_no_two_contributions_share_memory_and_all_lie_in_the_data(call):
    sizes = call.sizes()
    workspaces = [(rank + 1) << 40 for rank in range(call.ranks)]
    row_bytes = call.n * 2
    begins = [
        call.places(source, workspaces)["partial"].astype(np.int64)
        for source in range(call.ranks)
    ]
    begin = np.sort(np.concatenate(begins))
    assert (np.diff(begin) >= row_bytes).all()
    offset = begin % (1 << 40)
    in_place = call.reducer != Reducer.PUSH and not call.float32_output
    exchanges = call.collective == Collective.ALL_REDUCE and not in_place
    limit = sizes.result_offset if exchanges else sizes.data_offset + sizes.data_bytes
    assert offset.min() >= sizes.data_offset
    assert offset.max() + row_bytes <= limit
    if exchanges:
        result = call.places(0, workspaces)["result"].astype(np.int64)
        assert result.min() >= sizes.result_offset
        last = result.max() + call.n * (4 if call.float32_output else 2)
        assert last <= sizes.data_offset + sizes.data_bytes


@settings(max_examples=150, deadline=None)
@given(calls(max_rows=20_000))
def test_a_call_within_the_payload_fits(call):
    sizes = call.sizes()
    assert sizes.data_pitch >= call.n
    assert sizes.data_pitch % 8 == 0
    assert sizes.data_offset + sizes.data_bytes <= sizes.nbytes or not sizes.fits
    # An exchange of f32 results needs more than the payload, and says so.
    if not (call.collective == Collective.ALL_REDUCE and call.float32_output):
        assert sizes.data_bytes <= sizes.nbytes - sizes.data_offset
    if call.n >= 64 and call.rows >= 128 and not call.float32_output:
        assert sizes.fits


def test_rows_keep_whole_cache_lines_apart_where_there_is_room():
    call = Call(ranks=4, rows=512, n=136)
    assert call.sizes().data_pitch == 136
    roomy = Call(ranks=4, rows=512, n=136, payload_bytes=1 << 20)
    assert roomy.sizes().data_pitch == 192


@pytest.mark.parametrize("epoch", [1, 2**32 - 1, 2**32, 2**40 - 1])
def test_a_verdict_fits_one_word(epoch):
    verdict = Verdict(FaultKind.OTHER_CALL, reporter=71, blamed=70, epoch=epoch)
    assert verdict.pack() < 2**64
    assert Verdict.unpack(verdict.pack()) == verdict
