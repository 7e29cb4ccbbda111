"""What a launch does when a rank is missing, makes another call, or is someone else.

Every rank ends by itself, in bounded time, with NaN instead of old memory, and all of
them name the same rank.
"""

import pytest
from comm_world import NEVER_NS, World, check_results, launch_simt
from kernel_layout import Awaited, Call, Collective, FaultKind, Reducer
from ptx_emulator import Schedule

pytestmark = pytest.mark.requires("nvcc")

TIMEOUT_NS = 2_000_000
# Idle time passes in jumps of a quarter, and a spin looks at the clock every 8 turns.
BOUND_NS = 10 * TIMEOUT_NS
CALLS = {
    "push_rs": (Reducer.PUSH, Collective.REDUCE_SCATTER),
    "push_ar": (Reducer.PUSH, Collective.ALL_REDUCE),
    "pull_ar": (Reducer.PULL, Collective.ALL_REDUCE),
    "multicast_rs": (Reducer.MULTICAST, Collective.REDUCE_SCATTER),
}


class Ranks:
    """A world of three ranks on which one kind of call is made again and again."""

    def __init__(self, kernel: str, *, rows: int = 70, n: int = 72):
        reducer, collective = CALLS[kernel]
        self.call = Call(3, rows, n, reducer=reducer, collective=collective)
        self.world = World(self.call, resident_ctas=2)

    def launch(self, *ranks: int, call_hash: int = 1, **options) -> list:
        options = {"timeout_ns": TIMEOUT_NS, **options}
        return launch_simt(
            self.world, self.call, ranks=ranks, call_hash=call_hash, **options
        )

    def launch_all(self, call_hash: int = 1, **options) -> list:
        return self.launch(0, 1, 2, call_hash=call_hash, **options)

    def verdict(self):
        """The verdict, which must be one and the same on all ranks."""
        faults = self.world.faults()
        assert None not in faults, faults
        assert len({fault.verdict for fault in faults}) == 1, faults
        return faults[0].verdict


@pytest.mark.parametrize(
    ("kernel", "absent"),
    [
        ("push_rs", 0),
        ("push_rs", 1),
        ("push_rs", 2),
        ("push_ar", 0),
        ("pull_ar", 1),
        ("multicast_rs", 2),
    ],
)
def test_a_rank_that_never_starts_is_named_by_all(kernel, absent):
    ranks = Ranks(kernel)
    check_first = ranks.launch_all()
    ranks.world.run(absent)
    check_results(check_first)

    launches = ranks.launch_all(2)
    result = ranks.world.run(absent, Schedule(absent_ranks=[absent]))
    assert result.virtual_ns < BOUND_NS
    # Its host finds out when it comes at last: the launch ends at once.
    late = ranks.world.run(absent)
    assert late.virtual_ns < TIMEOUT_NS
    verdict = ranks.verdict()
    assert verdict.kind == FaultKind.TIMEOUT
    assert verdict.blamed == absent
    assert verdict.reporter != absent
    assert verdict.epoch == 2
    assert all(launch.is_poisoned() for launch in launches)


def test_the_record_says_what_was_waited_for():
    ranks = Ranks("push_rs")
    ranks.launch_all(5)
    ranks.world.run(0, Schedule(absent_ranks=[1]))
    faults = ranks.world.faults()
    reporter = faults[0].verdict.reporter
    fault = faults[reporter]
    assert fault.awaited == Awaited.PARTIAL
    assert fault.peer == 1
    assert fault.seen == 0
    assert fault.wanted == 1 << 24 | 5


def test_calls_queued_behind_a_fault_end_within_one_time_out():
    ranks = Ranks("push_ar", rows=3, n=8)
    launches = [launch for _ in range(64) for launch in ranks.launch_all(grid=1)]
    result = ranks.world.run(0, Schedule(absent_ranks=[2]))
    assert result.virtual_ns < BOUND_NS
    ranks.world.run(0)
    assert ranks.verdict().blamed == 2
    assert all(launch.is_poisoned() for launch in launches)


def test_a_skipped_call_is_an_error_and_not_a_wrong_sum():
    ranks = Ranks("push_rs")
    first = ranks.launch(0, 2, call_hash=10)
    second = ranks.launch_all(11)
    ranks.world.run(4)
    verdict = ranks.verdict()
    assert verdict.kind == FaultKind.OTHER_CALL
    assert verdict.epoch == 1
    seen = [fault for fault in ranks.world.faults() if fault.awaited == Awaited.PARTIAL]
    assert seen
    assert all({f.seen & 0xFFFFFF, f.wanted & 0xFFFFFF} == {10, 11} for f in seen)
    assert all(launch.is_poisoned() for launch in [*first, *second])


def test_a_call_skipped_for_good_is_a_time_out_that_names_the_rank():
    ranks = Ranks("push_ar")
    ranks.launch_all(1)
    ranks.launch(0, 1, call_hash=2)
    ranks.world.run(0)
    faults = ranks.world.faults()
    assert faults[0].verdict == faults[1].verdict
    assert faults[0].verdict.kind == FaultKind.TIMEOUT
    assert faults[0].verdict.blamed == 2
    # The third rank had nothing to wait for; it hears of it in its next launch.
    assert faults[2] is None
    ranks.launch(2, call_hash=3)
    ranks.world.run(0)
    assert ranks.verdict().blamed == 2


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_another_call_at_one_rank(odd):
    ranks = Ranks("multicast_rs")
    others = [rank for rank in range(3) if rank != odd]
    launches = ranks.launch(*others, call_hash=20) + ranks.launch(odd, call_hash=21)
    ranks.world.run(odd)
    assert ranks.verdict().kind == FaultKind.OTHER_CALL
    assert any(launch.is_poisoned() for launch in launches)


def test_a_mesh_of_another_device_order():
    ranks = Ranks("push_rs")
    ranks.launch(0)
    swapped = ranks.launch(1, axis_index=2) + ranks.launch(2, axis_index=1)
    ranks.world.run(3)
    ranks.launch_all()
    ranks.world.run(3)
    verdict = ranks.verdict()
    assert verdict.kind == FaultKind.WRONG_RANK
    assert verdict.blamed in (1, 2)
    fault = ranks.world.faults()[verdict.blamed]
    assert {fault.seen, fault.wanted} == {1, 2}
    assert all(launch.is_poisoned() for launch in swapped)


def test_the_death_of_a_process_ends_the_wait_before_its_deadline():
    ranks = Ranks("pull_ar")
    launches = ranks.launch(0, 1, timeout_ns=NEVER_NS)
    ranks.world.lose(2)
    ranks.world.run(0)
    faults = ranks.world.faults()[:2]
    assert all(fault.verdict.kind == FaultKind.PEER_LOST for fault in faults)
    assert all(fault.verdict.blamed == 2 for fault in faults)
    assert all(launch.is_poisoned() for launch in launches)


def test_a_single_rank_with_the_wrong_index_gets_nan():
    call = Call(ranks=1, rows=70, n=72)
    world = World(call)
    [launch] = launch_simt(world, call, axis_index=3)
    world.run(0)
    assert launch.is_poisoned()
    assert world.faults()[0].verdict.kind == FaultKind.WRONG_RANK
