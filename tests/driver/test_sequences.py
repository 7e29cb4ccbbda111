"""Random sequences of allocate, rendezvous, fail and free, against a model."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from fake_cuda.launch import NOTHING, FakeMachine
from hub import Hub
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import MIB, Setup
from test_matrix import one_verdict

pytestmark = pytest.mark.timeout(300)

RANKS = 3
GROUP = [[(rank, 0) for rank in range(RANKS)]]
BUDGET = 4
_names = (f"seq{number}" for number in itertools.count())

OPENS = st.tuples(
    st.just("open"),
    st.integers(1, 9 * MIB),
    st.sampled_from(["never", "auto", "auto", "require"]),
)
FAILS = st.tuples(
    st.just("fail"),
    st.integers(0, RANKS - 1),
    st.sampled_from(
        ["cuMemCreate", "cuMemMap", "cuMulticastAddDevice", "cuMulticastBindMem"]
    ),
    st.sampled_from([2, 401, 999]),
)
CLOSES = st.tuples(
    st.just("close"),
    st.integers(0, 7),
    st.sets(st.integers(0, RANKS - 1), min_size=1),
)


@dataclasses.dataclass
class Model:
    """What should be true of the buffers that are open."""

    machine: FakeMachine
    hub: Hub
    buffers: dict[str, set[int]] = dataclasses.field(default_factory=dict)
    multicast: set[str] = dataclasses.field(default_factory=set)
    contents: dict[str, bytes] = dataclasses.field(default_factory=dict)

    def open(self, nbytes: int, policy: str, fails: bool) -> None:
        name = next(_names)
        self.hub.run("forget", {})
        setup = Setup(name, GROUP, policy, nbytes=nbytes)
        verdict = one_verdict(self.hub.run("open_kept", {"setup": setup}))
        self.machine.script(faults=[])
        full = any("JAX_SYMM_MULTICAST_BUDGET" in str(text) for text in verdict)
        if not fails and not full:
            assert verdict[0] == ("peers" if policy == "never" else "full"), verdict
        if full:
            assert max(self.objects()) == BUDGET
        if policy == "require":
            assert verdict[0] != "peers"
        if verdict[0] == "raised":
            return
        self.buffers[name] = set(range(RANKS))
        if verdict[0] == "full":
            self.multicast.add(name)
        self.contents[name] = bytes(16)

    def objects(self) -> list[int]:
        return [one["multicast_objects"] for one in self.hub.run("ledger", {})]

    def close(self, index: int, ranks: set[int]) -> None:
        if not self.buffers:
            return
        name = sorted(self.buffers)[index % len(self.buffers)]
        self.hub.run("close_kept", {"name": name}, only=sorted(ranks))
        self.buffers[name] -= ranks
        if not self.buffers[name]:
            del self.buffers[name]

    def check(self) -> None:
        """Every store lands where it should, on every rank, and nowhere else."""
        for name in self._whole():
            self.contents[name] = name.encode().ljust(16, b".")
            if name in self.multicast:
                seen = self.hub.run("addresses", {"name": name})
                address = seen[1][0][0]
                store = {"tag": "p1", "address": address, "data": self.contents[name]}
                assert self.machine.multimem_store(**store) == RANKS
            else:
                data = {"name": name, "data": self.contents[name]}
                self.hub.run("write", data)
        for name in self._whole():
            place = {"name": name, "offset": 0, "nbytes": 16}
            seen = self.hub.run("peek", place)
            assert seen == [[self.contents[name]] * RANKS] * RANKS, name
        report = self.machine.report()
        assert report["violations"] == []
        assert report["premature_waits"] == 0
        assert max(self.objects()) <= BUDGET

    def _whole(self) -> list[str]:
        return [name for name, ranks in self.buffers.items() if len(ranks) == RANKS]


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.one_of(OPENS, OPENS, CLOSES, FAILS), max_size=12))
def test_sequences(
    machine: FakeMachine, hubs: dict[int, Hub], steps: list[tuple[Any, ...]]
) -> None:
    model = Model(machine, hubs[RANKS])
    machine.script(faults=[])
    failing = False
    for step in steps:
        if step[0] == "fail":
            machine.script(faults=[(f"p{step[1]}", step[2], 1, step[3])])
            failing = True
            continue
        if step[0] == "open":
            model.open(step[1], step[2], failing)
            failing = False
        else:
            model.close(step[1], step[2])
        model.check()
    for name in list(model.buffers):
        hubs[RANKS].run("close_kept", {"name": name})
    machine.script(faults=[])
    assert machine.counts() == NOTHING
