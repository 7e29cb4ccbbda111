"""One workspace, many launches: nothing earlier is taken for something later."""

import random

import pytest
from comm_world import World, check_results, launch_simt, simt_ptx
from kernel_layout import Call, Collective, Reducer
from ptx_emulator import EmulationError, Schedule

pytestmark = pytest.mark.requires("nvcc")

KERNELS = {
    "push_rs": (Reducer.PUSH, Collective.REDUCE_SCATTER),
    "push_ar": (Reducer.PUSH, Collective.ALL_REDUCE),
    "pull_rs": (Reducer.PULL, Collective.REDUCE_SCATTER),
    "pull_ar": (Reducer.PULL, Collective.ALL_REDUCE),
    "multicast_rs": (Reducer.MULTICAST, Collective.REDUCE_SCATTER),
    "multicast_ar": (Reducer.MULTICAST, Collective.ALL_REDUCE),
}


def _call(kernel: str, ranks: int, rows: int, n: int = 64) -> Call:
    reducer, collective = KERNELS[kernel]
    return Call(ranks=ranks, rows=rows, n=n, reducer=reducer, collective=collective)


def test_fifty_launches_of_changing_shape_and_kind():
    chance = random.Random(5)
    world = World(_call("push_ar", 2, 72))
    calls = []
    for number in range(50):
        kernel = chance.choice(list(KERNELS))
        rows, n = chance.choice([1, 2, 30, 65, 70]), chance.choice([8, 64])
        call = _call(kernel, 2, rows, n)
        calls.append(launch_simt(world, call, grid=1, call_hash=number))
    world.run(11)
    for launches in calls:
        check_results(launches)
    assert world.faults() == [None] * 2


def _fails_somewhere(kernel: str, *defines: str) -> bool:
    """Whether four launches in a row go wrong, or are reported, for some seed."""
    rows = [66, 34, 66, 2]
    for seed in range(3):
        world = World(_call(kernel, 2, 66), resident_ctas=2, seed=seed)
        ptx = simt_ptx(kernel, *defines)
        calls = [launch_simt(world, _call(kernel, 2, m), ptx=ptx) for m in rows]
        try:
            world.run(seed, Schedule(slow_rank=seed % 2))
            for launches in calls:
                check_results(launches)
        except (AssertionError, EmulationError):
            return True
    return False


# All-reduces in place are not among them: whoever has all results knows that every
# owner has read its partial. Others divide the data anew for another number of rows.
@pytest.mark.parametrize("kernel", ["push_rs", "push_ar", "pull_rs", "multicast_rs"])
def test_without_the_wait_for_the_previous_launch_it_goes_wrong(kernel):
    assert not _fails_somewhere(kernel)
    assert _fails_somewhere(kernel, "JAX_SYMM_MUTANT_NO_DONE_WAIT")


def test_a_long_lived_workspace_passes_the_epoch_of_32_bits():
    call = _call("push_ar", 2, 66)
    world = World(call)
    world.set_epoch(2**32 - 2)
    calls = [launch_simt(world, call) for _ in range(3)]
    world.run(0)
    for launches in calls:
        check_results(launches)
    assert world.faults() == [None] * 2
