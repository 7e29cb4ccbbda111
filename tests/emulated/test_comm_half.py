"""The communication half behind a SIMT mainloop: sums, whatever the shape and schedule."""

import pytest
from comm_world import World, check_results, launch_simt
from configurations import SPACES
from kernel_layout import Call, Collective, Reducer
from ptx_emulator import ADVERSARIAL

pytestmark = pytest.mark.requires("nvcc")

SPACE = SPACES["comm"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("configuration", SPACE.few(), ids=SPACE.identify)
def test_sums_are_exact_on_every_rank(configuration, seed):
    schedule = list(ADVERSARIAL.values())[seed]
    SPACE.run(configuration, schedule, seed)


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
