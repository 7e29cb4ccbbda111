"""Situations from public bug reports that must come out right here."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from fake_cuda.launch import NOTHING, FakeMachine
from hub import Hub
from ranks import MIB, Seen, Setup
from test_matrix import one_verdict

FOUR = [[(rank, 0) for rank in range(4)]]


@pytest.fixture
def four(machine: FakeMachine, hubs: dict[int, Hub]) -> Hub:
    hubs[4].run("forget", {})
    machine.script(faults=[])
    return hubs[4]


def test_c13_multicast_is_live_everywhere_when_set_up_returns(
    machine: FakeMachine, four: Hub
) -> None:
    """The first store reaches all ranks, however late one of them maps."""
    for number in range(50):
        slow = itertools.cycle(["cuMulticastBindMem", "cuMemMap", "cuMemSetAccess"])
        nth = {"cuMulticastBindMem": 1, "cuMemMap": 5, "cuMemSetAccess": 5}
        call = next(itertools.islice(slow, number % 3, None))
        machine.script(faults=[("p2", call, nth[call], "delay:0.02")])
        setup = Setup(f"c13-{number}", FOUR)
        reached = four.run("open_and_store", {"setup": setup})
        assert reached == [4, None, None, None]


@pytest.mark.parametrize(
    ("tag", "call", "result"),
    [
        ("p0", "cuMulticastCreate", 801),
        ("p0", "cuMulticastCreate", 401),
        ("p3", "cuMulticastBindMem", 2),
    ],
)
def test_c28_multicast_looks_supported_but_fails(
    machine: FakeMachine, four: Hub, tag: str, call: str, result: int
) -> None:
    machine.script(faults=[(tag, call, 1, result)])
    warned = four.run("warnings_of", {"setups": [Setup("c28", FOUR)]})
    for texts in warned:
        assert len(texts) == 1
        assert f"rank {tag[1]} of group 0 failed" in texts[0]
        assert f"({result})" in texts[0]
    assert machine.counts() == NOTHING


def test_c29_no_multicast_leaves_the_peers(machine: FakeMachine, four: Hub) -> None:
    machine.configure(multicast_attribute=(False,) * 72)
    setup = Setup("c29", FOUR)
    verdict = one_verdict(
        four.run("open_and_close", {"setup": setup, "bytes_too": True})
    )
    assert verdict[0] == "peers"
    assert "has no NVLink multicast" in verdict[2]


@pytest.mark.parametrize("processes", [1, 4])
def test_c29_peer_access_within_pairs_only(
    machine: FakeMachine, hubs: dict[int, Hub], processes: int
) -> None:
    pairs = ((0, 1), (1, 0), (2, 3), (3, 2))
    machine.configure(peer_access=pairs)
    groups = FOUR if processes == 4 else [[(0, rank) for rank in range(4)]]
    setup = Setup("c29-pairs", groups)
    verdict = one_verdict(hubs[processes].run("open_and_close", {"setup": setup}))
    assert verdict[0] == "raised"
    assert "peer access" in verdict[2] or "PEER_ACCESS_UNSUPPORTED" in verdict[2]


def test_c30_attribute_without_substance(machine: FakeMachine, four: Hub) -> None:
    machine.configure(fabric_manager=802)
    verdict = one_verdict(four.run("open_and_close", {"setup": Setup("c30", FOUR)}))
    assert verdict[0] == "peers"
    assert "SYSTEM_NOT_READY" in verdict[2]


@pytest.mark.parametrize(
    ("config", "kind"),
    [({"granularity": 0}, "raised"), ({"multicast_granularity": 0}, "peers")],
)
def test_c30_granularity_of_zero(
    machine: FakeMachine, four: Hub, config: dict[str, int], kind: str
) -> None:
    """An answer of 0 is no arithmetic fault; without multicast's, peers still work."""
    machine.configure(**config)
    verdict = one_verdict(four.run("open_and_close", {"setup": Setup("c30-0", FOUR)}))
    assert verdict[0] == kind
    assert "granularity of 0" in verdict[2]


def test_c30_one_rank_works_anywhere(
    machine: FakeMachine, hubs: dict[int, Hub]
) -> None:
    machine.configure(
        multicast_attribute=(False,) * 72, peer_access=(), fabric_attribute=False
    )
    setup = Setup("c30-1", [[(0, 0)]])
    outcomes = hubs[1].run("open_and_close", {"setup": setup, "bytes_too": True})
    assert isinstance(outcomes[0], Seen)


@pytest.mark.parametrize("unit", [2 * MIB, 4 * MIB])
@pytest.mark.parametrize("nbytes", [1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1])
def test_c31_rounding(machine: FakeMachine, four: Hub, unit: int, nbytes: int) -> None:
    """Sizes are rounded once, to what memory and multicast accept alike."""
    machine.configure(multicast_granularity=unit)
    names = [f"c31-{number}" for number in range(3)]
    for name in names:
        setup = Setup(name, FOUR, "require", nbytes=nbytes)
        assert one_verdict(four.run("open_kept", {"setup": setup}))[0] == "full"
    rounded = -(-nbytes // unit) * unit
    for number, name in enumerate(names):
        seen = four.run("addresses", {"name": name})
        assert [one[0][1] for one in seen] == [number * rounded] * 4
        assert all(one[0][0] % 128 == 0 for one in seen)
    for name in names:
        four.run("close_kept", {"name": name})


def test_c33_out_of_memory_on_one_rank(machine: FakeMachine, four: Hub) -> None:
    """Every rank hears of it, with the sizes and what to set; then it goes on."""
    machine.configure(gpu_bytes=64 * MIB)
    big = Setup("c33", FOUR, "never", nbytes=48 * MIB)
    four.run("open_kept", {"setup": Setup("c33-first", [[(2, 0)]], nbytes=32 * MIB)})
    verdict = one_verdict(four.run("open_kept", {"setup": big}))
    assert verdict[1] == "SymmMemoryError"
    assert verdict[2].startswith("rank 2 of group 0 failed while allocating")
    for text in (str(48 * MIB), str(32 * MIB), "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        assert text in verdict[2]
    small = Setup("c33-small", FOUR, nbytes=8 * MIB)
    assert isinstance(four.run("open_and_close", {"setup": small})[0], Seen)
    four.run("close_kept", {"name": "c33-first"})


def test_c34_three_hundred_rounds(machine: FakeMachine, four: Hub) -> None:
    for number in range(300):
        four.run("open_and_close", {"setup": Setup(f"c34-{number}", FOUR)})
        assert machine.counts() == NOTHING


def test_c34_failed_unbind_keeps_the_memory(machine: FakeMachine, four: Hub) -> None:
    """It is reported and counted, and nothing is freed behind it."""
    four.run("open_kept", {"setup": Setup("c34", FOUR)})
    machine.script(faults=[("p1", "cuMulticastUnbind", 1, 999)])
    four.run("close_kept", {"name": "c34"})
    ledgers = four.run("ledger", {})
    assert [one["teardown_failures"] for one in ledgers] == [0, 1, 0, 0]
    assert [one["quarantined"] for one in ledgers] == [0, 1, 0, 0]
    assert ledgers[1]["multicast_objects"] == 1
    assert machine.counts()["slots"] == 1
    assert machine.report()["violations"] == []
    four.discard(1)


def test_c34_failed_unmap_keeps_the_range(machine: FakeMachine, four: Hub) -> None:
    four.run("open_kept", {"setup": Setup("c34-unmap", FOUR, "never")})
    machine.script(faults=[("p3", "cuMemUnmap", 2, 999)])
    four.run("close_kept", {"name": "c34-unmap"})
    assert machine.counts()["ranges"] == machine.counts()["mappings"] == 1
    assert four.run("ledger", {})[3]["quarantined"] == 1
    four.discard(3)


@pytest.mark.parametrize("orders", [("0,1", "1,0"), ("0", "1"), ("3,1", "2,0,1")])
def test_c35_visible_devices_differ(
    machine: FakeMachine, orders: tuple[str, str]
) -> None:
    """Ordinals mean nothing between processes: devices are told apart by UUID."""
    hub = Hub([machine.environment(f"p{i}", order) for i, order in enumerate(orders)])
    try:
        setup = Setup("c35", [[(0, 0), (1, 0)]])
        outcomes = hub.run("open_and_close", {"setup": setup, "bytes_too": True})
        assert one_verdict(outcomes)[0] == "full"
    finally:
        hub.close()


def test_c36_descriptors_do_not_pile_up(machine: FakeMachine, four: Hub) -> None:
    four.run("open_and_close", {"setup": Setup("c36", FOUR)})
    before = four.run("open_descriptors", {})
    for number in range(100):
        four.run("open_and_close", {"setup": Setup(f"c36-{number}", FOUR)})
    assert four.run("open_descriptors", {}) == before


def test_a_rack_of_ranks_in_one_process(machine: FakeMachine) -> None:
    """72 ranks: nothing counts ranks in 32 or 64 bits."""
    machine.configure(gpus=72)
    hub = Hub([machine.environment("p0")])
    try:
        setup = Setup("rack", [[(0, rank) for rank in range(72)]])
        outcomes = hub.run("open_and_close", {"setup": setup})
        assert one_verdict(outcomes)[0] == "full"
    finally:
        hub.close()


def test_more_than_four_gibibytes(machine: FakeMachine, four: Hub) -> None:
    """Sizes and offsets need 64 bits, from the request to the multicast offset."""
    machine.configure(gpu_bytes=1 << 42)
    names = ["big-a", "big-b"]
    for name in names:
        setup = Setup(name, FOUR, "require", nbytes=5 << 30, capacity_bytes=1 << 40)
        assert one_verdict(four.run("open_kept", {"setup": setup}))[0] == "full"
    address, offset = four.run("addresses", {"name": "big-b"})[0][0]
    assert offset == 5 << 30
    last = address + (5 << 30) - 8
    assert machine.multimem_store(tag="p0", address=last, data=b"the last") == 4
    seen = four.run("peek", {"name": "big-b", "offset": (5 << 30) - 8, "nbytes": 8})
    assert seen == [[b"the last"] * 4] * 4
    for name in names:
        four.run("close_kept", {"name": name})


def test_ten_thousand_cycles(machine: FakeMachine) -> None:
    """Allocate, map and free, without growth of the process or the driver's books."""
    hub = Hub([machine.environment("p0")], 300.0)
    try:
        grown: Any = hub.run("cycle", {"count": 10_000})[0]
        assert grown["descriptors"] == 0
        assert grown["resident_kib"] < 2048
        assert grown["ledger"] == dict.fromkeys(grown["ledger"], 0)
        assert machine.counts() == NOTHING
    finally:
        hub.close()
