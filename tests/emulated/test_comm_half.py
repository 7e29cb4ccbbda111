"""The communication half behind a SIMT mainloop: sums, whatever the shape and schedule.

`JAX_SYMM_TEST_SEEDS=20` runs the product of the parameters with that many seeds instead
of the pairwise set with two.
"""

import itertools
import os

import pytest
from comm_world import World, check_results, launch_simt
from kernel_layout import Call, Collective, Reducer
from pairwise import pairwise
from ptx_emulator import ADVERSARIAL

pytestmark = pytest.mark.requires("nvcc")

SEEDS = int(os.environ.get("JAX_SYMM_TEST_SEEDS", "0"))
COLLECTIVES = {
    "rs": Collective.REDUCE_SCATTER,
    "ar": Collective.ALL_REDUCE,
}
PARAMETERS = {
    "ranks": [1, 2, 3, 4, 8, 16],
    "reducer": list(Reducer),
    "collective": list(COLLECTIVES),
    # One row; fewer rows than ranks; a tile and its neighbours; several tiles.
    "rows": [1, 7, 63, 64, 65, 130],
    "batch": [1, 2, 3],
    "n": [8, 72],
    "float32_output": [False, True],
    "spare_shard_rows": [0, 3],
    "grid": [1, 3],
    "resident_ctas": [1, 4],
}


def _affordable(c: dict) -> bool:
    return c["ranks"] * c["rows"] * c["batch"] * c["n"] <= 30_000


def _configurations() -> list[dict]:
    if not SEEDS:
        return pairwise(PARAMETERS, _affordable)
    product = itertools.product(*PARAMETERS.values())
    return [dict(zip(PARAMETERS, values, strict=True)) for values in product]


def _name(configuration: dict) -> str:
    return "-".join(str(value) for value in configuration.values())


def _call(c: dict) -> Call:
    shard_rows = -(-c["rows"] // c["ranks"]) + c["spare_shard_rows"]
    return Call(
        ranks=c["ranks"],
        rows=c["rows"],
        batch=c["batch"],
        n=c["n"],
        shard_rows=shard_rows,
        float32_output=c["float32_output"],
        reducer=c["reducer"],
        collective=COLLECTIVES[c["collective"]],
        # Room for results of f32 in place of the operands' type.
        payload_bytes=4 * c["batch"] * c["ranks"] * shard_rows * 128,
    )


@pytest.mark.parametrize("configuration", _configurations(), ids=_name)
def test_sums_are_exact_on_every_rank(configuration):
    call = _call(configuration)
    schedules = list(ADVERSARIAL.values())
    for seed in range(SEEDS or 2):
        world = World(call, resident_ctas=configuration["resident_ctas"], seed=seed)
        launches = launch_simt(world, call, grid=configuration["grid"])
        result = world.run(seed, schedules[seed % len(schedules)])
        check_results(launches)
        assert result.reports == ()
        assert world.faults() == [None] * call.ranks


@pytest.mark.parametrize("reducer", [Reducer.PUSH, Reducer.MULTICAST])
def test_f16(reducer):
    collective = Collective.REDUCE_SCATTER
    if reducer == Reducer.MULTICAST:
        collective = Collective.ALL_REDUCE
    call = Call(ranks=3, rows=70, n=72, reducer=reducer, collective=collective)
    world = World(call)
    launches = launch_simt(world, call, element="f16")
    world.run(3)
    check_results(launches)


@pytest.mark.parametrize("reducer", list(Reducer))
@pytest.mark.parametrize("schedule", ["slow_rank", "starved_warp"])
def test_one_resident_cta_and_a_laggard(reducer, schedule):
    call = Call(
        ranks=4,
        rows=130,
        n=72,
        reducer=reducer,
        collective=Collective.ALL_REDUCE,
    )
    world = World(call, resident_ctas=1)
    launches = launch_simt(world, call, grid=3)
    world.run(7, ADVERSARIAL[schedule])
    check_results(launches)


def test_more_ranks_than_a_warp_has_lanes():
    call = Call(ranks=33, rows=40, n=8, collective=Collective.ALL_REDUCE)
    world = World(call, resident_ctas=1)
    launches = launch_simt(world, call, grid=1)
    world.run(0)
    check_results(launches)
