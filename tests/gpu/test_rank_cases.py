"""What the kernels compute for groups of ranks, bit for bit; situations of bug reports.

Each test runs on CPU devices (host path), over the fake driver (what dispatch passes to the
kernels), on ranks that share one GPU, and on one GPU a rank: see rank_rigs.py. The
situations are numbered as in the project's list of public bug reports (C01, ...).
"""

import random
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from rank_rigs import ON_GPU, rigs

from jax_symm.errors import SymmStateError, SymmTimeoutError

OPS = ["reduce_scatter", "all_reduce"]
BF16 = np.dtype(ml_dtypes.bfloat16)


def integers(seed, ranks, m, n, k, dtype=BF16, w_layout="kn", batch=()):
    """Small integers, rank r's times 2**r where that is exact in the dtype."""
    rng = np.random.default_rng(seed)
    x = (
        rng.integers(-2, 3, (*batch, m, ranks, k))
        * 2.0 ** (np.arange(ranks) % 4)[:, None]
    )
    w = rng.integers(-2, 3, (ranks * k, n))
    return (
        x.reshape(*batch, m, ranks * k).astype(dtype),
        np.ascontiguousarray(w if w_layout == "kn" else w.T).astype(dtype),
    )


def wanted(op, x, w, ranks, out_dtype=None, **options):
    """Partials rounded once, summed in float32 in rank order, and rounded once."""
    kn = options.get("w_layout", "kn") == "kn"
    total = np.float32(0)
    for x_part, w_part in zip(
        np.split(x.astype(np.float32), ranks, -1),
        np.split(w.astype(np.float32), ranks, 0 if kn else 1),
        strict=True,
    ):
        partial = x_part @ (w_part if kn else w_part.T)
        total = total + partial.astype(x.dtype).astype(np.float32)
    total = total.astype(out_dtype or x.dtype)
    if op == "all_reduce":
        return total
    padding = [(0, 0)] * total.ndim
    padding[-2] = (0, -total.shape[-2] % ranks)
    return np.pad(total, padding)


def check(rig, op, x, w, **options):
    """Runs a call and compares every bit; a row that is never written would be NaN."""
    out = rig.call(op, x, w, **options)
    reference = {k: v for k, v in options.items() if k in ("w_layout",)}
    out_dtype = options.get("preferred_element_type")
    expected = wanted(op, x, w, rig.world_size, out_dtype, **reference)
    np.testing.assert_array_equal(
        np.asarray(out, np.float32), np.asarray(expected, np.float32)
    )


@rigs(1, 2, 3, 4, 8)
@pytest.mark.parametrize("op", OPS)
def test_any_number_of_ranks(rig, op, open_rig):
    """C03, and every reducer."""
    rig = open_rig(*rig, max_m=300, n=256)
    for reducer in rig.reducers:
        x, w = integers(0, rig.world_size, 257, 136, 72)
        check(rig, op, x, w, reducer=reducer)
    rig.check()


@rigs(4)
@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)], ids=["bf16", "f16"])
@pytest.mark.parametrize("w_layout", ["kn", "nk"])
def test_types_layouts_and_batches(rig, dtype, w_layout, open_rig):
    rig = open_rig(*rig, max_m=320, n=192)
    for op in OPS:
        for batch in ((), (3,)):
            x, w = integers(1, 4, 70, 72, 40, dtype, w_layout, batch)
            check(rig, op, x, w, w_layout=w_layout)
    x, w = integers(2, 4, 70, 72, 40, dtype, w_layout)
    check(
        rig,
        "reduce_scatter",
        x,
        w,
        w_layout=w_layout,
        preferred_element_type=np.dtype(np.float32),
    )


@rigs(4)
@pytest.mark.parametrize("op", OPS)
def test_one_workspace_for_every_m(rig, op, open_rig):
    """C01: sized for the largest m, then called with others; nothing stale shows."""
    kind, _ = rig
    rig = open_rig(*rig, max_m=8192 if kind in ON_GPU else 512, n=512)
    large = 8192 if kind in ON_GPU else 512
    for reducer in rig.reducers:
        for seed, m in enumerate([large, 16, 4, 300, 4, large, 12, 1, 7]):
            x, w = integers(seed, 4, m, 64, 96)
            check(rig, op, x, w, reducer=reducer)


@rigs(8, 3, kinds=("cpu", "fake", "shared", "gpus"))
def test_every_path_writes_every_row(rig, open_rig):
    """C02: 2**R - 1 everywhere, and the counter says that the ranks ran it."""
    rig = open_rig(*rig, max_m=64, n=40)
    ranks = rig.world_size
    x, w = map(np.asarray, oracle.rank_bits(ranks, 61, 40, BF16, k_local=8))
    for reducer in rig.reducers:
        for op in OPS:
            before = rig.calls()
            out = rig.call(op, x, w, reducer=reducer).astype(np.float32)
            assert (out[:61] == 2**ranks - 1).all()
            assert not out[61:].any()
            assert rig.calls() == before + ranks


# (m, k per rank, n) of layers that are no multiple of any tile: Qwen3-30B, gpt-oss, Qwen3-4B.
RAGGED = [(200, 96, 2048), (64, 360, 2880), (264, 1216, 2560), (1752, 584, 4720)]


@rigs(8)
@pytest.mark.parametrize("shape", RAGGED, ids=lambda s: "x".join(map(str, s)))
def test_off_the_tile_grid(rig, shape, open_rig):
    """C07."""
    kind, ranks = rig
    m, k, n = shape
    if (
        kind not in ON_GPU
    ):  # the same remainders by 64, 128 and 256, and less to compute
        m, k, n = (m - 1) % 256 + 1, (k - 1) % 128 + 1, (n - 1) % 256 + 1
        m = min(m, 136)
    rig = open_rig(kind, ranks, max_m=m + ranks, n=n)
    for reducer in rig.reducers:
        x, w = integers(3, ranks, m, n, k)
        check(rig, "reduce_scatter", x, w, reducer=reducer)
        check(rig, "all_reduce", x, w, reducer=reducer)


@rigs(8)
def test_the_sum_is_in_f32(rig, open_rig):
    """C10: a running sum in bfloat16 gives 3; in any order of ranks it must be 6."""
    rig = open_rig(*rig, max_m=64, n=64)
    partials = np.array([256, 1, 1, 1, -256, 1, 1, 1.0])
    x = np.zeros((16, 64), BF16)
    x[:, ::8] = 1
    for order in (np.arange(8), np.arange(8)[::-1], [1, 4, 2, 0, 7, 5, 6, 3]):
        w = np.repeat(partials[order], 8)[:, None] * np.ones((1, 24))
        for reducer in rig.reducers:
            for op in OPS:
                out = rig.call(op, x, w.astype(BF16), reducer=reducer)
                assert (out.astype(np.float32) == 6).all()


@rigs(4)
@pytest.mark.parametrize("op", OPS)
def test_bits_do_not_depend_on_history(rig, op, open_rig):
    """C11: the same bits run after run and in another workspace; on every rank."""
    kind, ranks = rig
    rng = np.random.default_rng(0)
    m, n, k = (256, 1024, 512) if kind in ON_GPU else (64, 64, 32)
    x = rng.standard_normal((m, ranks * k)).astype(BF16)
    w = rng.standard_normal((ranks * k, n)).astype(BF16)
    first = open_rig(kind, ranks, max_m=m, n=n)
    call = first.prepare(op, x, w)
    bits = call.start().result().tobytes()
    for _ in range(200 if kind in ON_GPU else 5):
        assert call.start().result().tobytes() == bits
    open_rig(kind, ranks, max_m=3 * m + 1, n=n)
    third = open_rig(kind, ranks, max_m=m, n=n)
    assert third.call(op, x, w).tobytes() == bits


@rigs(4)
@pytest.mark.parametrize("op", OPS)
def test_special_values_spread_only_where_they_should(rig, op, open_rig):
    """C12: NaN and Inf appear exactly where the definition has them."""
    rig = open_rig(*rig, max_m=32, n=64)
    x = np.ones((18, 64), np.float32)
    x[3, 5], x[7, 1], x[0] = np.nan, np.inf, -0.0
    x, w = x.astype(BF16), np.ones((64, 24), BF16)
    for reducer in rig.reducers:
        out = rig.call(op, x, w, reducer=reducer).astype(np.float32)
        expected = oracle.expected(op, x, w, 4)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(out), np.isinf(expected))
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(out[finite], expected[finite])


@rigs(4, 8)
def test_random_data_against_float64(rig, open_rig):
    kind, ranks = rig
    rng = np.random.default_rng(1)
    m, n, k = (1024, 1024, 512) if kind in ON_GPU else (64, 64, 64)
    rig = open_rig(kind, ranks, max_m=m, n=n)
    x = rng.standard_normal((m, ranks * k)).astype(BF16)
    w = rng.standard_normal((ranks * k, n)).astype(BF16)
    x64, w64 = x.astype(np.float64), w.astype(np.float64)
    pairs = zip(np.split(x64, ranks, 1), np.split(w64, ranks), strict=True)
    partials = [a @ b for a, b in pairs]
    exact = sum(partials)
    # Each partial and the sum are rounded once to 8 bits; the float32 sums err by far less.
    bound = 2.0**-8 * (sum(map(abs, partials)) + abs(exact))
    bound += 2 * (k + ranks) * 2.0**-24 * (abs(x64) @ abs(w64))
    for reducer in rig.reducers:
        for op in OPS:
            out = rig.call(op, x, w, reducer=reducer).astype(np.float64)
            assert (np.abs(out - exact) <= bound).all()


@rigs(2, 4)
def test_ranks_that_come_late(rig, open_rig):
    """Skew between ranks, another one each time, changes no bit."""
    rig = open_rig(*rig, max_m=320, n=64)
    x, w = integers(5, rig.world_size, 300, 64, 64)
    rng = random.Random(0)
    for reducer in rig.reducers:
        for op in OPS:
            late = [rng.choice([0.0, 0.0, 0.02, 0.05]) for _ in range(rig.world_size)]
            check(rig, op, x, w, reducer=reducer, late=late)


@rigs(4)
def test_a_thousand_mixed_launches(rig, open_rig):
    """Random operation, shape, type, layout and reducer, many in flight at once."""
    kind, ranks = rig
    problems, launches = {"shared": (40, 1000), "gpus": (16, 1000)}.get(kind, (8, 60))
    largest = 1200 if kind in ON_GPU else 150
    rig = open_rig(kind, ranks, max_m=largest + ranks, n=512)
    rng = random.Random(7)
    calls = []
    for seed in range(problems):
        op, w_layout = rng.choice(OPS), rng.choice(["kn", "nk"])
        dtype = rng.choice([BF16, np.dtype(np.float16)])
        m, n, k = (
            rng.randint(1, largest),
            8 * rng.randint(1, 32),
            8 * rng.randint(1, 24),
        )
        x, w = integers(seed, ranks, m, n, k, dtype, w_layout)
        call = rig.prepare(
            op, x, w, w_layout=w_layout, reducer=rng.choice(rig.reducers)
        )
        calls.append((call, wanted(op, x, w, ranks, w_layout=w_layout)))
    for number in range(launches):
        call, expected = rng.choice(calls)
        call.start()
        if number % (launches // 10) == 0:
            np.testing.assert_array_equal(
                call.result().astype(np.float32), expected.astype(np.float32)
            )
    for call, expected in calls:
        result = call.start().result()
        np.testing.assert_array_equal(
            result.astype(np.float32), expected.astype(np.float32)
        )
    rig.check()
    assert rig.calls() >= ranks * launches


@rigs(2, kinds=("cpu", "gpus"))
def test_two_threads_may_call(rig, open_rig):
    """C14, C16, C25: two programs from two threads, each with its own data.

    On GPUs two threads may launch in another order on each device. Then it is an error:
    never a sum of two calls.
    """
    kind, ranks = rig
    rig = open_rig(kind, ranks, max_m=512, n=64)
    rounds = 200 if kind in ON_GPU else 30
    wrong, refused = [], []

    def work(sign):
        x, w = map(np.asarray, oracle.rank_bits(ranks, 96, 64, BF16, k_local=8))
        call = rig.prepare("reduce_scatter", sign * x, w)
        try:
            for _ in range(rounds):
                out = call.start().result().astype(np.float32)
                right = (out == sign * (2**ranks - 1)) | np.isnan(out)
                if not right.all():
                    wrong.append(out)
                rig.check()
        except (SymmStateError, jax.errors.JaxRuntimeError) as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not refused or kind == "gpus"
    assert all("made another call than" in text for text in refused)


@rigs(2, 4, kinds=("fake", "shared"))
def test_two_streams_of_a_rank(rig, open_rig):
    """C14: calls of one workspace on two streams are one sequence."""
    rig = open_rig(*rig, max_m=160, n=64)
    own = [None] * rig.world_size
    other = [rig.new_stream() for _ in range(rig.world_size)]
    plus = integers(8, rig.world_size, 128, 64, 64)
    minus = (-plus[0], plus[1])
    calls = [rig.prepare("all_reduce", x, w) for x, w in (plus, minus)]
    for _ in range(20):
        for call, streams in zip(calls, (own, other), strict=True):
            for rank in range(rig.world_size):
                rig.submit(
                    rank,
                    call.problem,
                    "push",
                    call.buffers[rank],
                    call.identity,
                    streams[rank],
                )
    first, second = (call.result().astype(np.float32) for call in calls)
    np.testing.assert_array_equal(first, -second)
    expected = wanted("all_reduce", *plus, rig.world_size).astype(np.float32)
    np.testing.assert_array_equal(first, expected)


@rigs(2, 4, kinds=("fake", "shared"))
def test_another_call_on_one_rank_is_an_error(rig, open_rig):
    """C16, C17: never the sum of two different calls, and every rank names both."""
    rig = open_rig(*rig, max_m=160, n=64)
    x, w = integers(9, rig.world_size, 128, 64, 64)
    calls = [rig.prepare(op, x, w) for op in OPS]
    for rank in range(rig.world_size):
        call = calls[rank == 1]
        rig.submit(rank, call.problem, "push", call.buffers[rank], call.identity)
    rig.synchronize()
    for workspace in rig.workspaces:
        with pytest.raises(SymmStateError, match="made another call than"):
            workspace.check()


@rigs(2, 4, kinds=("shared",))
def test_a_rank_that_never_comes(rig, open_rig):
    """Within the time-out, on every rank that waits, and the rank is named."""
    rig = open_rig(*rig, max_m=160, n=64, timeout_s=1.0)
    x, w = integers(9, rig.world_size, 128, 64, 64)
    call = rig.prepare("all_reduce", x, w)
    for rank in range(rig.world_size - 1):
        rig.submit(rank, call.problem, "push", call.buffers[rank], call.identity)
    rig.synchronize()
    missing = f"rank {rig.world_size - 1} did not come"
    for workspace in rig.workspaces[:-1]:
        with pytest.raises(SymmTimeoutError, match=missing):
            workspace.check()
    out = np.array(jnp.copy(call.buffers[0][2]))
    assert np.isnan(out.astype(np.float32)).any()
