"""The PTX of the SM90 and SM100 kernels, executed: results, ordering, progress, faults."""

from dataclasses import dataclass

import numpy as np
import pytest
from codegen.gemm_variants import GemmVariant, Sm90Variant, Sm100Variant
from comm_world import FaultKind, check_results
from configurations import SM90_SHAPES, SM100_SHAPES, SPACES
from gemm_world import GemmWorld, run
from kernel_layout import Collective, Reducer
from ptx_emulator import ADVERSARIAL, Schedule

pytestmark = pytest.mark.requires("nvcc")

MAX_CONFIGURATIONS = 48
TIMEOUT_NS = 2_000_000


Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Family:
    """Kernels of one architecture, and what its tests take of them."""

    variant: type[GemmVariant]
    shapes: list[Shape]
    few_shapes: list[Shape]
    adverse: list[tuple[Shape, Reducer]]
    streams: list[tuple[Shape, Reducer]]  # of many launches
    one_of_each_role: tuple[int, ...]  # warps


FAMILIES = {
    "sm90": Family(
        Sm90Variant,
        SM90_SHAPES,
        [(128, 256, 2), (64, 128, 1)],
        [((128, 256, 2), Reducer.PUSH), ((128, 128, 1), Reducer.PULL)],
        [((128, 128, 2), Reducer.PULL)],
        (0, 1, 2, 3, 4, 11),
    ),
    "sm100": Family(
        Sm100Variant,
        SM100_SHAPES,
        SM100_SHAPES,
        [((128, 128, 1), Reducer.PUSH), ((128, 256, 2), Reducer.MULTICAST)],
        [((128, 128, 1), Reducer.MULTICAST), ((128, 256, 2), Reducer.PUSH)],
        (0, 3, 4, 7, 8, 9),
    ),
}
CONFIGURATIONS = {name: SPACES[name].few() for name in FAMILIES}


def adverse_times(name):
    """Schedules by name; every role starves once."""
    warps = FAMILIES[name].one_of_each_role
    return {
        "slow_engines": ADVERSARIAL["slow_engines"],
        "early_time_outs": ADVERSARIAL["early_time_outs"],
        "slow_rank": Schedule(slow_rank=1),
        "paused_rank": Schedule(pause={0: (20, 400)}),
        "late_start": Schedule(start_round={1: 500}),
        **{f"starved_warp_{w}": Schedule(starved_warp=w) for w in warps},
    }


# Values of each argument of a test, by its name and by the family of its class.
VALUES = {
    "shape": lambda name: FAMILIES[name].shapes,
    "few_shape": lambda name: FAMILIES[name].few_shapes,
    "of_shape": lambda name: [
        (shape, reducer) for shape in FAMILIES[name].few_shapes for reducer in Reducer
    ],
    "stream": lambda name: FAMILIES[name].streams,
    "schedule": adverse_times,
    "index": lambda name: range(len(CONFIGURATIONS[name])),
}


def pytest_generate_tests(metafunc):
    if metafunc.cls is None:
        return
    name = metafunc.cls.name
    for argument in VALUES.keys() & set(metafunc.fixturenames):
        values = list(VALUES[argument](name))
        ids = [_id(v) for v in values]
        if argument == "index":
            ids = [SPACES[name].identify(CONFIGURATIONS[name][i]) for i in values]
        metafunc.parametrize(argument, values, ids=ids)


def _id(value):
    if isinstance(value, tuple):
        return "-".join(map(_id, value))
    return value.name.lower() if isinstance(value, Reducer) else str(value)


class KernelTests:
    """The tests of a family; a class each, so that parallel workers share them."""

    name: str

    @property
    def family(self) -> Family:
        return FAMILIES[self.name]

    def test_the_set_is_small(self):
        assert len(CONFIGURATIONS[self.name]) <= MAX_CONFIGURATIONS
        for parameter, values in SPACES[self.name].parameters.items():
            chosen = {config[parameter] for config in CONFIGURATIONS[self.name]}
            assert chosen == set(values)

    @pytest.mark.parametrize("adverse", [False, True], ids=["uniform", "adverse"])
    def test_pairwise(self, index, adverse):
        names = list(ADVERSARIAL)
        schedule = ADVERSARIAL[names[1 + index % (len(names) - 1)]] if adverse else None
        SPACES[self.name].run(CONFIGURATIONS[self.name][index], schedule, index)

    def test_one_rank_stores_straight_to_the_output(self, shape):
        for layout, n in (("kn", 264), ("nk", 136)):
            variant = self.family.variant(shape, layout)
            run(variant, ranks=1, rows=300, n=n, k=200, clusters=2)

    def test_one_resident_cluster_finishes_an_all_reduce(self, of_shape):
        variant = self.all_reduce(*of_shape)
        run(variant, ranks=2, rows=520, n=72, k=8, clusters=3, resident=1)

    def test_adverse_times(self, schedule):
        for shape, reducer in self.family.adverse:
            adverse = adverse_times(self.name)[schedule]
            variant = self.all_reduce(shape, reducer)
            run(variant, adverse, ranks=2, rows=130, n=72, k=648)

    def test_a_rank_that_never_starts_is_named_by_all_others(self, of_shape):
        variant = self.all_reduce(*of_shape)
        call = variant.call(ranks=3, rows=300, n=72, k=8)
        world = GemmWorld(variant, call, resident_ctas=2 * variant.cluster)
        launches = world.start_all(variant, call, timeout_ns=TIMEOUT_NS)
        world.run(3, Schedule(absent_ranks={1}))
        present = [rank for rank in world.ranks if rank != 1]
        verdicts = {world.faults()[rank].verdict for rank in present}
        assert len(verdicts) == 1
        assert verdicts.pop().kind == FaultKind.TIMEOUT
        assert {world.faults()[rank].verdict.blamed for rank in present} == {1}
        assert all(launches[rank].is_poisoned() for rank in present)

    def test_launches_after_a_fault_end_at_once(self, few_shape):
        variant = self.family.variant(few_shape, reducer=Reducer.PUSH)
        call = variant.call(ranks=2, rows=300, n=72, k=8)
        world = GemmWorld(variant, call, resident_ctas=variant.cluster)
        # Idle time passes in steps, so one time-out can look like a few; not like ten.
        present = [
            world.start(0, variant, call, timeout_ns=TIMEOUT_NS) for _ in range(24)
        ]
        world.start(1, variant, call)
        result = world.run(0, Schedule(absent_ranks={1}))
        assert world.faults()[0].verdict.blamed == 1
        assert all(launch.is_poisoned() for launch in present)
        assert result.virtual_ns < 10 * TIMEOUT_NS

    def test_fifty_launches_of_changing_shape(self, stream):
        """No rank waits for another between calls: only the protocol keeps them apart."""
        shape, reducer = stream
        draw = np.random.default_rng(7)
        kernel = self.family.variant
        variants = [kernel(shape, reducer=reducer, collective=c) for c in Collective]
        largest = variants[1].call(ranks=2, rows=64, n=64, k=8)
        world = GemmWorld(variants[0], largest, resident_ctas=shape[2])
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

    def all_reduce(self, shape: Shape, reducer: Reducer) -> GemmVariant:
        return self.family.variant(
            shape, reducer=reducer, collective=Collective.ALL_REDUCE
        )


class TestSm90(KernelTests):
    name = "sm90"


class TestSm100(KernelTests):
    name = "sm100"

    def test_many_ranks(self):
        variant = Sm100Variant(reducer=Reducer.PULL, collective=Collective.ALL_REDUCE)
        run(variant, ranks=33, rows=7, n=8, k=8)

    def test_sixteen_ranks_of_one_tile(self):
        variant = Sm100Variant((128, 128, 2), "nk", reducer=Reducer.MULTICAST)
        run(variant, ranks=16, rows=128, n=128, k=64)
