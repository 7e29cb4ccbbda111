"""Multicast: when it is asked for, what a refusal costs, and how objects are shared."""

from __future__ import annotations

import types
from typing import Any

import pytest
from fake_cuda.launch import NOTHING, FakeMachine
from hub import Hub
from ranks import MIB, Seen, Setup
from test_matrix import one_verdict

from jax_symm import _multicast
from jax_symm._multicast_plan import MulticastPlan
from jax_symm._rounds import Step, Verdict
from jax_symm.errors import (
    SymmError,
    SymmMemoryError,
    SymmTimeoutError,
    SymmUnavailableError,
)

THREE = [[(rank, 0) for rank in range(3)]]
ALL_IN_ONE = [[(0, rank) for rank in range(3)]]


@pytest.fixture
def three(machine: FakeMachine, hubs: dict[int, Hub]) -> Hub:
    hubs[3].run("forget", {})
    machine.script(faults=[])
    return hubs[3]


def opened(hub: Hub, setup: Setup) -> list[Any]:
    return hub.run("open_kept", {"setup": setup})


def closed(hub: Hub, *names: str) -> None:
    for name in names:
        hub.run("close_kept", {"name": name})


def offsets(hub: Hub, name: str) -> list[int]:
    return [seen[0][1] for seen in hub.run("addresses", {"name": name})]


def calls(machine: FakeMachine, prefix: str) -> list[str]:
    return [name for _, name in machine.report()["trace"] if name.startswith(prefix)]


def test_never_makes_no_multicast_call(machine: FakeMachine, three: Hub) -> None:
    outcomes = three.run("open_and_close", {"setup": Setup("never", THREE, "never")})
    assert one_verdict(outcomes)[0] == "peers"
    assert calls(machine, "cuMulticast") == []


def test_multicast_reaches_every_rank(machine: FakeMachine, three: Hub) -> None:
    """A store through the multicast address lands in every rank's buffer."""
    opened(three, Setup("first", THREE))
    opened(three, Setup("second", THREE))
    assert offsets(three, "second") == [4 * MIB] * 3
    address, _ = three.run("addresses", {"name": "second"})[1][0]
    reached = machine.multimem_store(tag="p1", address=address + 64, data=b"to all")
    assert reached == 3
    seen = three.run("peek", {"name": "second", "offset": 64, "nbytes": 6})
    assert seen == [[b"to all"] * 3] * 3
    seen = three.run("peek", {"name": "first", "offset": 64, "nbytes": 6})
    assert seen == [[bytes(6)] * 3] * 3
    closed(three, "first", "second")


def test_require_honours_the_sites_no(machine: FakeMachine) -> None:
    environments = [machine.environment(f"p{i}", str(i)) for i in range(2)]
    environments[1]["FAKE_VETO"] = "NCCL_NVLS_ENABLE=0"
    hub = Hub(environments)
    two = [[(0, 0), (1, 0)]]
    try:
        machine.script(faults=[])
        auto = one_verdict(hub.run("open_and_close", {"setup": Setup("a", two)}))
        assert auto[0] == "peers"
        assert auto[2] == "the environment of process 1 says NCCL_NVLS_ENABLE=0"
        raised = one_verdict(
            hub.run("open_and_close", {"setup": Setup("b", two, "require")})
        )
        assert raised[1] == "SymmUnavailableError"
        assert "NCCL_NVLS_ENABLE=0" in raised[2]
        assert calls(machine, "cuMulticastCreate") == []
    finally:
        hub.close()


def test_drained_pool_is_remembered(machine: FakeMachine, three: Hub) -> None:
    """One rendezvous asks the pool; the next ones do not, until the memory fades."""
    machine.configure(pool_size=0)
    first = one_verdict(opened(three, Setup("one", THREE)))
    assert first[0] == "peers"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in first[2]
    machine.script(faults=[])
    again = one_verdict(opened(three, Setup("two", THREE)))
    assert again[0] == "peers"
    assert "pool of multicast objects is empty" in again[2]
    assert calls(machine, "cuMulticastCreate") == []
    closed(three, "one", "two")
    machine.configure(pool_size=1)
    three.run("forget", {})
    assert one_verdict(opened(three, Setup("three", THREE)))[0] == "full"
    closed(three, "three")


def test_drained_pool_under_require(machine: FakeMachine, three: Hub) -> None:
    machine.configure(pool_size=0)
    outcomes = opened(three, Setup("need", THREE, "require"))
    assert one_verdict(outcomes)[1] == SymmMemoryError.__name__
    assert machine.counts() == NOTHING


def test_warning_names_the_pool_once(machine: FakeMachine, three: Hub) -> None:
    machine.configure(pool_size=0)
    warned = three.run(
        "warnings_of", {"setups": [Setup("w1", THREE), Setup("w2", THREE)]}
    )
    for texts in warned:
        assert len(texts) == 1
        assert "the rack's pool of multicast objects is empty" in texts[0]
        assert "rank 0" in texts[0]


@pytest.mark.parametrize("stalls", [1, 3])
def test_not_ready_is_retried_in_lock_step(
    machine: FakeMachine, three: Hub, stalls: int
) -> None:
    machine.configure(fabric_manager_next=[802] * stalls)
    assert one_verdict(opened(three, Setup("retry", THREE)))[0] == "full"
    assert len(set(three.rounds.values())) == 1
    assert len(calls(machine, "cuMulticastCreate")) == stalls + 1
    closed(three, "retry")


def test_not_ready_gives_up_after_three_retries(
    machine: FakeMachine, three: Hub
) -> None:
    machine.configure(fabric_manager=802)
    verdict = one_verdict(opened(three, Setup("tired", THREE)))
    assert verdict[0] == "peers"
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in verdict[2]
    assert len(calls(machine, "cuMulticastCreate")) == 4
    closed(three, "tired")


def test_not_ready_on_one_rank_retries_all(machine: FakeMachine, three: Hub) -> None:
    machine.script(faults=[("p1", "cuMulticastBindMem", 1, 802)])
    assert one_verdict(opened(three, Setup("one stall", THREE)))[0] == "full"
    assert len(calls(machine, "cuMulticastBindMem")) == 6
    closed(three, "one stall")


def test_worse_failure_beats_not_ready(machine: FakeMachine, three: Hub) -> None:
    """No retry when some rank failed for a reason that waiting does not cure."""
    machine.script(
        faults=[
            ("p0", "cuMulticastBindMem", 1, 802),
            ("p2", "cuMulticastBindMem", 1, 401),
        ]
    )
    verdict = one_verdict(opened(three, Setup("mixed", THREE)))
    assert verdict[0] == "peers"
    assert verdict[2].startswith("rank 2")
    assert len(calls(machine, "cuMulticastCreate")) == 1
    closed(three, "mixed")


def test_one_incapable_gpu_means_no_multicast_for_four(
    machine: FakeMachine, hubs: dict[int, Hub]
) -> None:
    machine.configure(multicast_attribute=(True, True, False) + (True,) * 13)
    machine.script(faults=[])
    four = Setup("four", [[(rank, 0) for rank in range(4)]])
    outcomes = hubs[4].run("open_and_close", {"setup": four, "bytes_too": True})
    verdict = one_verdict(outcomes)
    assert verdict[0] == "peers"
    assert verdict[2] == "the GPU of rank 2 has no NVLink multicast"
    assert calls(machine, "cuMulticastCreate") == []


def test_pool_of_one_and_two_groups(machine: FakeMachine, hubs: dict[int, Hub]) -> None:
    """Two groups of one mesh: the pool serves one, and everyone knows which."""
    machine.configure(pool_size=1)
    pairs = [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]
    hubs[4].run("forget", {})
    outcomes = hubs[4].run("open_kept", {"setup": Setup("pairs", pairs)})
    assert sorted(outcomes[0].multicast.values()) == [False, True]
    assert all(o.multicast == outcomes[0].multicast for o in outcomes)
    assert all(o.reasons == outcomes[0].reasons for o in outcomes)
    hubs[4].run("check_kept", {"name": "pairs"})
    hubs[4].run("close_kept", {"name": "pairs"})
    hubs[4].run("forget", {})


def test_required_by_two_groups_with_a_pool_of_one(
    machine: FakeMachine, hubs: dict[int, Hub]
) -> None:
    machine.configure(pool_size=1)
    pairs = [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]
    hubs[4].run("forget", {})
    outcomes = hubs[4].run("open_kept", {"setup": Setup("both", pairs, "require")})
    verdict = one_verdict(outcomes)
    assert verdict[1] == SymmMemoryError.__name__
    assert "of group" in verdict[2]
    assert machine.counts() == NOTHING
    hubs[4].run("forget", {})


def test_mesh_of_two_groups_of_which_one_fails(
    machine: FakeMachine, hubs: dict[int, Hub]
) -> None:
    """A failure of the peers raises everywhere, also in the group that is well."""
    pairs = [[(0, 0), (1, 0)], [(2, 0), (3, 0)]]
    machine.script(faults=[("p3", "cuMemSetAccess", 2, 217)])
    outcomes = hubs[4].run("open_kept", {"setup": Setup("half", pairs)})
    verdict = one_verdict(outcomes)
    assert verdict[0] == "raised"
    assert verdict[2].startswith("rank 1 of group 1 failed while mapping memory")
    assert machine.counts() == NOTHING


def test_buffers_share_one_object_until_it_is_full(
    machine: FakeMachine, three: Hub
) -> None:
    names = [f"share{number}" for number in range(6)]
    for name in names:  # 4 MiB each, in objects of 16 MiB
        assert one_verdict(opened(three, Setup(name, THREE)))[0] == "full"
    assert machine.counts()["slots"] == 2
    closed(three, *names)
    assert machine.counts() == NOTHING


def test_range_is_used_again_only_when_all_have_freed_it(
    machine: FakeMachine, three: Hub
) -> None:
    opened(three, Setup("a", THREE))
    opened(three, Setup("b", THREE))
    three.run("close_kept", {"name": "a"}, only=[0, 1])
    opened(three, Setup("c", THREE))
    assert offsets(three, "c") == [8 * MIB] * 3
    three.run("close_kept", {"name": "a"}, only=[2])
    opened(three, Setup("d", THREE))
    assert offsets(three, "d") == [0] * 3
    closed(three, "b", "c", "d")


def test_object_that_one_process_let_go_is_not_shared(
    machine: FakeMachine, three: Hub
) -> None:
    """Rank 2 dropped it with its last buffer, so the next buffer gets a new one."""
    opened(three, Setup("old", THREE))
    three.run("close_kept", {"name": "old"}, only=[2])
    assert one_verdict(opened(three, Setup("new", THREE)))[0] == "full"
    assert machine.counts()["slots"] == 2
    closed(three, "old", "new")


def test_budget(machine: FakeMachine) -> None:
    environments = [
        machine.environment(f"p{i}", str(i), FAKE_BUDGET="1") for i in range(2)
    ]
    hub = Hub(environments)
    two = [[(0, 0), (1, 0)]]
    try:
        for name in ("one", "two", "three", "four"):
            assert one_verdict(opened(hub, Setup(name, two)))[0] == "full"
        machine.script(faults=[])
        fifth = one_verdict(opened(hub, Setup("five", two)))
        assert fifth[0] == "peers"
        assert "JAX_SYMM_MULTICAST_BUDGET" in fifth[2]
        assert calls(machine, "cuMulticastCreate") == []
        closed(hub, "one", "two", "three", "four", "five")
        assert one_verdict(opened(hub, Setup("six", two)))[0] == "full"
        closed(hub, "six")
    finally:
        hub.close()


def test_buffer_larger_than_the_capacity(machine: FakeMachine, three: Hub) -> None:
    large = Setup("large", THREE, nbytes=40 * MIB)
    assert one_verdict(opened(three, large))[0] == "full"
    closed(three, "large")


def test_ranks_on_one_gpu(machine: FakeMachine) -> None:
    """Two processes with the same GPU: peers work, and the reason names the ranks."""
    hub = Hub([machine.environment(f"p{i}", "5") for i in range(2)])
    try:
        setup = Setup("same", [[(0, 0), (1, 0)]])
        outcomes = hub.run("open_and_close", {"setup": setup, "bytes_too": True})
        verdict = one_verdict(outcomes)
        assert verdict[0] == "peers"
        assert "ranks 0 and 1 share one GPU" in verdict[2]
    finally:
        hub.close()


def test_a_group_of_one(machine: FakeMachine, hubs: dict[int, Hub]) -> None:
    setup = Setup("alone", [[(0, 0)]])
    verdict = one_verdict(hubs[1].run("open_and_close", {"setup": setup}))
    assert verdict == ("peers", "", "a group of one rank has nobody to multicast to")


def test_one_process_maps_once_for_all_its_gpus(
    machine: FakeMachine, hubs: dict[int, Hub]
) -> None:
    hubs[1].run("forget", {})
    machine.script(faults=[])
    hubs[1].run("open_kept", {"setup": Setup("once", ALL_IN_ONE)})
    maps = calls(machine, "cuMemMap")
    assert len(maps) == 4  # three ranks and the multicast object
    assert calls(machine, "cuMemExport") == calls(machine, "cuMemImport") == []
    assert machine.counts()["descriptors"] == 0
    hubs[1].run("close_kept", {"name": "once"})


def two_hosts(machine: FakeMachine, *domains: str) -> Hub:
    return Hub(
        [
            machine.environment(f"p{i}", str(i), FAKE_CUDA_DOMAIN=domain)
            for i, domain in enumerate(domains)
        ],
    )


def test_two_hosts_of_one_domain(machine: FakeMachine) -> None:
    hub = two_hosts(machine, "rack", "rack")
    try:
        setup = Setup("fabric", [[(0, 0), (1, 0)]], hosts=("a", "b"))
        machine.script(faults=[])
        outcomes = hub.run("open_and_close", {"setup": setup, "bytes_too": True})
        assert one_verdict(outcomes)[0] == "full", outcomes
        assert machine.counts() == NOTHING
    finally:
        hub.close()


def test_two_hosts_of_two_domains(machine: FakeMachine) -> None:
    """Each host's own trial succeeds; only a peer's handle shows the border."""
    hub = two_hosts(machine, "rack", "other")
    try:
        setup = Setup("border", [[(0, 0), (1, 0)]], hosts=("a", "b"))
        outcomes = hub.run("open_and_close", {"setup": setup})
        verdict = one_verdict(outcomes)
        assert verdict[0] == "raised"
        assert "importing a peer's memory" in verdict[2]
        assert "CUDA_ERROR_INVALID_HANDLE" in verdict[2]
        assert machine.counts() == NOTHING
    finally:
        hub.close()


def test_two_hosts_without_a_channel(machine: FakeMachine) -> None:
    """The attribute promises fabric handles, the trial is refused with 800."""
    machine.configure(fabric_channel=False)
    hub = two_hosts(machine, "rack", "rack")
    try:
        setup = Setup("channel", [[(0, 0), (1, 0)]], hosts=("a", "b"))
        verdict = one_verdict(hub.run("open_and_close", {"setup": setup}))
        assert verdict[1] == SymmUnavailableError.__name__
        assert "CUDA_ERROR_NOT_PERMITTED" in verdict[2]
        assert "IMEX channel" in verdict[2]
    finally:
        hub.close()


def test_one_host_without_a_channel_uses_descriptors(
    machine: FakeMachine, three: Hub
) -> None:
    machine.configure(fabric_channel=False)
    setup = Setup("fd", THREE)
    outcomes = three.run("open_and_close", {"setup": setup, "bytes_too": True})
    assert one_verdict(outcomes)[0] == "full"


def test_fabric_manager_that_never_answers(machine: FakeMachine, three: Hub) -> None:
    """All are stuck in Bind: all go on by peers, and say what is in quarantine."""
    machine.configure(fabric_manager=None)
    outcomes = opened(three, Setup("silent", THREE, bind_deadline_s=0.5))
    verdict = one_verdict(outcomes)
    assert verdict[0] == "peers"
    assert "did not return within" in verdict[2]
    assert [o.ledger["quarantined"] for o in outcomes] == [1, 1, 1]
    assert three.run("check_kept", {"name": "silent"}) == [None] * 3
    closed(three, "silent")
    for index in range(3):
        three.discard(index)


def test_slow_fabric_manager_is_waited_for(machine: FakeMachine, three: Hub) -> None:
    machine.configure(fabric_manager_delay_s=0.2)
    setup = Setup("slow", THREE)
    assert one_verdict(opened(three, setup))[0] == "full"
    closed(three, "slow")


def test_close_on_one_rank_while_others_use_the_memory(
    machine: FakeMachine, three: Hub
) -> None:
    """What rank 1 closed stays readable for its peers until they close, too."""
    outcomes = opened(three, Setup("early", THREE, "never"))
    assert all(isinstance(one, Seen) for one in outcomes)
    three.run("write", {"name": "early", "data": b"mine"})
    three.run("close_kept", {"name": "early"}, only=[1])
    seen = three.run("peek", {"name": "early", "offset": 0, "nbytes": 4}, only=[0, 2])
    assert seen == [[b"mine"] * 3] * 2
    closed(three, "early")
    closed(three, "early")  # idempotent
    assert machine.counts() == NOTHING


def test_what_an_earlier_try_brought_goes_when_a_later_vote_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Group 0 has its range when the retry for group 1 ends in a vote that expires."""
    released = []

    class Try:
        tries = 0

        def __init__(self, *arguments: object) -> None:
            self.ranges = {0: types.SimpleNamespace(release=lambda: released.append(0))}

        def run(self, groups: list[int], name: str) -> dict[int, Verdict]:
            Try.tries += 1
            if Try.tries == 1:
                return {1: Verdict(Step.MULTICAST_NOT_READY, 0, SymmError("802"))}
            raise SymmTimeoutError("the vote expired")

    monkeypatch.setattr(_multicast, "_Try", Try)
    with pytest.raises(SymmTimeoutError, match="the vote expired"):
        _multicast.rendezvous_multicast(
            None,
            {0: None, 1: None},
            [MulticastPlan(), MulticastPlan()],
            None,
            handle_type=None,
            required=False,
            deadline_s=1.0,
            backoff_s=(0.0,),
        )
    assert released == [0]
