"""The PTX of every SM100 kernel, executed: results bit for bit, ordering, progress, faults."""

import numpy as np
import pytest
from comm_world import FaultKind, check_results
from kernel_layout import Collective, Reducer
from pairwise import pairwise
from ptx_emulator import ADVERSARIAL, Schedule
from sm100_world import Sm100World, Variant

pytestmark = pytest.mark.requires("nvcc")

SHAPES = [(128, 1), (128, 2), (256, 2)]
PARAMETERS = {
    "shape": SHAPES,
    "layout": ["kn", "nk"],
    "element": ["bf16", "f16"],
    "reducer": list(Reducer),
    "collective": list(Collective),
    "ranks": [2, 3, 4, 8, 16],
    "rows": [1, 7, 127, 128, 129, 255, 300],
    "n": [8, 72, 264],
    "k": [8, 72, 200],
    "batch": [1, 3],
    "float32_output": [False, True],
    "tight": [False, True],  # no room in the workspace for rows of whole cache lines
}
MAX_CONFIGURATIONS = 48
MAX_WORK = 40_000  # elements of all ranks' partials: seconds each


def affordable(config):
    """Small enough for the emulator, and for sums of 2**rank in f16."""
    work = config["ranks"] * config["batch"] * config["rows"] * config["n"]
    fits_f16 = config["element"] == "bf16" or config["ranks"] <= 8
    return work <= MAX_WORK and fits_f16


CONFIGURATIONS = pairwise(PARAMETERS, affordable)


def identify(config):
    words = [Variant.of(config).symbol.removeprefix("jax_symm_sm100_")]
    words += [f"R{config['ranks']}", f"b{config['batch']}x{config['rows']}"]
    words += [f"n{config['n']}", f"k{config['k']}"]
    words += [name for name in ("float32_output", "tight") if config[name]]
    return "-".join(words)


def payload(ranks, rows, n, batch=1, float32_output=False, tight=False):
    """Bytes of a workspace for this call."""
    columns = n if tight else -(-n // 64) * 64
    shards = batch * ranks * -(-rows // ranks)
    return shards * columns * (4 if float32_output else 2)


def run(
    variant, schedule=None, *, seed=0, clusters=1, resident=None, tight=False, **at
):
    """One call of all ranks, checked; returns the emulator's account of it."""
    room = {name: value for name, value in at.items() if name != "k"}
    shape = variant.call(**at, payload_bytes=payload(**room, tight=tight))
    resident_ctas = (resident or clusters) * variant.cluster
    world = Sm100World(shape, resident_ctas=resident_ctas, seed=seed)
    launches = world.start_all(variant, shape, clusters=clusters)
    result = world.run(seed, schedule)
    assert world.faults() == [None] * shape.ranks
    check_results(launches)
    return result


def test_the_set_is_small():
    assert len(CONFIGURATIONS) <= MAX_CONFIGURATIONS
    for name, values in PARAMETERS.items():
        assert {config[name] for config in CONFIGURATIONS} == set(values)


@pytest.mark.parametrize("adverse", [False, True], ids=["uniform", "adverse"])
@pytest.mark.parametrize("config", CONFIGURATIONS, ids=identify)
def test_pairwise(config, adverse):
    index = CONFIGURATIONS.index(config)
    names = list(ADVERSARIAL)
    schedule = ADVERSARIAL[names[1 + index % (len(names) - 1)]] if adverse else None
    shape = ("ranks", "rows", "n", "k", "batch", "float32_output", "tight")
    run(
        Variant.of(config),
        schedule,
        seed=index,
        clusters=1 + index % 2,
        **{name: config[name] for name in shape},
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_rank_stores_straight_to_the_output(shape):
    for layout, n in (("kn", 264), ("nk", 136)):
        run(Variant(*shape, layout), ranks=1, rows=300, n=n, k=200, clusters=2)


def test_many_ranks():
    run(
        Variant(reducer=Reducer.PULL, collective=Collective.ALL_REDUCE),
        ranks=33,
        rows=7,
        n=8,
        k=8,
    )


def test_sixteen_ranks_of_one_tile():
    run(
        Variant(128, 2, "nk", reducer=Reducer.MULTICAST),
        ranks=16,
        rows=128,
        n=128,
        k=64,
    )


@pytest.mark.parametrize("reducer", Reducer, ids=lambda r: r.name.lower())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_resident_cluster_finishes_an_all_reduce(shape, reducer):
    variant = Variant(*shape, reducer=reducer, collective=Collective.ALL_REDUCE)
    run(variant, ranks=2, rows=520, n=72, k=8, clusters=3, resident=1)


ADVERSE_TIMES = {
    "slow_engines": ADVERSARIAL["slow_engines"],
    "early_time_outs": ADVERSARIAL["early_time_outs"],
    "slow_rank": Schedule(slow_rank=1),
    "paused_rank": Schedule(pause={0: (20, 400)}),
    "late_start": Schedule(start_round={1: 500}),
    **{f"starved_warp_{w}": Schedule(starved_warp=w) for w in (0, 3, 4, 7, 8, 9)},
}


@pytest.mark.parametrize("name", ADVERSE_TIMES)
def test_adverse_times(name):
    for shape, reducer in (((128, 1), Reducer.PUSH), ((256, 2), Reducer.MULTICAST)):
        variant = Variant(*shape, reducer=reducer, collective=Collective.ALL_REDUCE)
        run(variant, ADVERSE_TIMES[name], ranks=2, rows=130, n=72, k=648)


@pytest.mark.parametrize("reducer", Reducer, ids=lambda r: r.name.lower())
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rank_that_never_starts_is_named_by_all_others(shape, reducer):
    variant = Variant(*shape, reducer=reducer, collective=Collective.ALL_REDUCE)
    call = variant.call(ranks=3, rows=300, n=72, k=8)
    world = Sm100World(call, resident_ctas=2 * variant.cluster)
    launches = world.start_all(variant, call, timeout_ns=2_000_000)
    world.run(3, Schedule(absent_ranks={1}))
    present = [rank for rank in world.ranks if rank != 1]
    verdicts = {world.faults()[rank].verdict for rank in present}
    assert len(verdicts) == 1
    assert verdicts.pop().kind == FaultKind.TIMEOUT
    assert {world.faults()[rank].verdict.blamed for rank in present} == {1}
    assert all(launches[rank].is_poisoned() for rank in present)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_launches_after_a_fault_end_at_once(shape):
    variant = Variant(*shape, reducer=Reducer.PUSH)
    call = variant.call(ranks=2, rows=300, n=72, k=8)
    world = Sm100World(call, resident_ctas=variant.cluster)
    # Idle time passes in steps, so one time-out can look like a few; not like ten.
    timeout_ns = 2_000_000
    present = [world.start(0, variant, call, timeout_ns=timeout_ns) for _ in range(24)]
    world.start(1, variant, call)
    result = world.run(0, Schedule(absent_ranks={1}))
    assert world.faults()[0].verdict.blamed == 1
    assert all(launch.is_poisoned() for launch in present)
    assert result.virtual_ns < 10 * timeout_ns


@pytest.mark.parametrize(
    ("shape", "reducer"),
    [((128, 1), Reducer.MULTICAST), ((256, 2), Reducer.PUSH)],
    ids=str,
)
def test_fifty_launches_of_changing_shape(shape, reducer):
    """No rank waits for another between calls: only the protocol keeps them apart."""
    draw = np.random.default_rng(7)
    variants = [Variant(*shape, reducer=reducer, collective=c) for c in Collective]
    largest = variants[1].call(ranks=2, rows=64, n=64, k=8)
    world = Sm100World(largest, resident_ctas=variants[0].cluster)
    calls = []
    for number in range(50):
        variant = variants[draw.integers(2)]
        rows, n = int(draw.integers(1, 40)), int(draw.integers(1, 4)) * 8
        call = variant.call(ranks=2, rows=rows, n=n, k=8)
        calls.append(world.start_all(variant, call, clusters=1, call_hash=number))
    world.run(5)
    assert world.faults() == [None, None]
    for launches in calls:
        check_results(launches)
