"""The PTX of the SM90 kernels, executed: results bit for bit, ordering, progress.

`JAX_SYMM_TEST_SEEDS=20` runs the product of the parameters with that many seeds instead
of the pairwise set with two schedules.
"""

import itertools
import os

import pytest
from comm_world import check_results
from kernel_layout import Collective, Reducer
from pairwise import pairwise
from ptx_emulator import ADVERSARIAL, Schedule
from sm90_world import Sm90World, Variant

SHAPES = [(128, 256, 2), (128, 256, 1), (128, 128, 2), (128, 128, 1), (64, 128, 1)]
SEEDS = int(os.environ.get("JAX_SYMM_TEST_SEEDS", "0"))
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
}
MAX_CONFIGURATIONS = 48
MAX_WORK = 80_000  # elements of all ranks' partials: seconds each


def affordable(config):
    """Small enough for the emulator, and for sums of 2**rank in f16."""
    work = config["ranks"] * config["batch"] * config["rows"] * config["n"]
    fits_f16 = config["element"] == "bf16" or config["ranks"] <= 8
    return work <= MAX_WORK and fits_f16


def configurations():
    if not SEEDS:
        return pairwise(PARAMETERS, affordable)
    product = itertools.product(*PARAMETERS.values())
    every = (dict(zip(PARAMETERS, values, strict=True)) for values in product)
    return [config for config in every if affordable(config)]


CONFIGURATIONS = configurations()


def variant_of(config):
    names = ("layout", "element", "reducer", "collective")
    return Variant(*config["shape"], **{name: config[name] for name in names})


def identify(config):
    words = [variant_of(config).symbol.removeprefix("jax_symm_sm90_")]
    words += [f"R{config['ranks']}", f"b{config['batch']}x{config['rows']}"]
    words += [f"n{config['n']}", f"k{config['k']}"]
    return "-".join(words + (["f32"] if config["float32_output"] else []))


def run(variant, schedule=None, *, seed=0, clusters=1, resident=None, **at):
    """One call of all ranks, checked; returns the emulator's account of it."""
    columns = -(-at["n"] // 64) * 64
    shards = at.get("batch", 1) * at["ranks"] * -(-at["rows"] // at["ranks"])
    width = 4 if at.get("float32_output") else 2
    shape = variant.call(**at, payload_bytes=shards * columns * width)
    resident_ctas = (resident or clusters) * variant.cluster
    world = Sm90World(shape, resident_ctas=resident_ctas, seed=seed)
    launches = world.start_all(variant, shape, clusters=clusters)
    result = world.run(seed, schedule)
    assert world.faults() == [None] * shape.ranks
    check_results(launches)
    return result


def test_the_set_is_small():
    if not SEEDS:
        assert len(CONFIGURATIONS) <= MAX_CONFIGURATIONS
    for name, values in PARAMETERS.items():
        assert {config[name] for config in CONFIGURATIONS} == set(values)


@pytest.mark.parametrize("seed", range(SEEDS or 2))
@pytest.mark.parametrize("config", CONFIGURATIONS, ids=identify)
def test_pairwise(config, seed):
    index = CONFIGURATIONS.index(config)
    names = list(ADVERSARIAL)
    adverse = ADVERSARIAL[names[1 + (index + seed) % (len(names) - 1)]]
    shape = ("ranks", "rows", "n", "k", "batch", "float32_output")
    run(
        variant_of(config),
        adverse if seed % 2 else None,
        seed=index + seed,
        clusters=1 + index % 2,
        **{name: config[name] for name in shape},
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_rank_stores_straight_to_the_output(shape):
    for layout, n in (("kn", 264), ("nk", 136)):
        run(Variant(*shape, layout), ranks=1, rows=300, n=n, k=200, clusters=2)


@pytest.mark.parametrize("reducer", Reducer, ids=lambda r: r.name.lower())
def test_one_resident_cluster_finishes_an_all_reduce(reducer):
    for shape in ((128, 256, 2), (64, 128, 1)):
        variant = Variant(*shape, reducer=reducer, collective=Collective.ALL_REDUCE)
        run(variant, ranks=2, rows=520, n=72, k=8, clusters=3, resident=1)


ADVERSE_TIMES = {
    "slow_engines": ADVERSARIAL["slow_engines"],
    "slow_rank": Schedule(slow_rank=1),
    "paused_rank": Schedule(pause={0: (20, 400)}),
    "late_start": Schedule(start_round={1: 500}),
    **{f"starved_warp_{w}": Schedule(starved_warp=w) for w in (0, 1, 2, 3, 4, 11)},
}


@pytest.mark.parametrize("name", ADVERSE_TIMES)
def test_adverse_times(name):
    for shape, reducer in (
        ((128, 256, 2), Reducer.PUSH),
        ((128, 128, 1), Reducer.PULL),
    ):
        variant = Variant(*shape, reducer=reducer, collective=Collective.ALL_REDUCE)
        run(variant, ADVERSE_TIMES[name], ranks=2, rows=130, n=72, k=648)
