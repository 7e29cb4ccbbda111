"""Faults through JAX itself: CPU devices, CUDA memory on the fake driver."""

from __future__ import annotations

import pathlib
from typing import Any

import launcher
import pytest
from fake_cuda.launch import NOTHING, FakeMachine

RANKS = 3
PROGRAM = str(pathlib.Path(__file__).with_name("jax_ranks"))
FAULTS = [
    ("cuDeviceGetUuid", 1, 999),
    ("cuMemCreate", 2, 2),
    ("cuMemSetAccess", 1, 217),
    ("cuMulticastCreate", 1, 801),
    ("cuMulticastAddDevice", 2, 101),
    ("cuMulticastBindMem", 3, 2),
]


def launch(
    machine: FakeMachine,
    function: str,
    argument: Any,
    *,
    processes: int,
    **options: Any,
) -> list[Any]:
    env_of_rank = {
        rank: machine.environment(f"p{rank}", "" if processes == 1 else str(rank))
        for rank in range(processes)
    }
    return launcher.launch(
        PROGRAM,
        function,
        processes=processes,
        devices=4 if processes == 1 else 1,
        argument=argument,
        env_of_rank=env_of_rank,
        **options,
    )


def check_outcomes(seen: list[Any]) -> None:
    for call, policy, kind, text, counts in seen:
        where = f"{call} under {policy}: {kind}: {text}"
        multicast = call.startswith("cuMulticast")
        assert (kind == "peers") == (multicast and policy == "auto"), where
        assert kind != "multicast", where
        assert call in text, where
        assert counts == NOTHING, where


def test_errors_in_one_process(machine: FakeMachine) -> None:
    (rank,) = launch(machine, "errors", FAULTS, processes=1)
    check_outcomes(rank.results["seen"])
    assert rank.results["clean"] == ["multicast", ""]


def test_errors_in_several_processes(machine: FakeMachine) -> None:
    faults = [("p1", call, 1, result) for call, _, result in FAULTS]
    faults = [("p0", *fault[1:]) if "Create" in fault[1] else fault for fault in faults]
    ranks = launch(machine, "errors_together", faults, processes=RANKS)
    check_outcomes(ranks[0].results["seen"])
    for rank in ranks:
        assert rank.results["seen"] == ranks[0].results["seen"]
        assert rank.results["clean"] == ["multicast", ""]


@pytest.mark.parametrize(
    "call", ["cuMemImportFromShareableHandle", "cuMulticastBindMem"]
)
def test_death_in_a_driver_call(machine: FakeMachine, call: str) -> None:
    """The others hear of it by the end of its connection, and go on among themselves."""
    ranks = launch(
        machine,
        "lose_a_rank",
        ("p2", call, 1, "kill"),
        processes=RANKS,
        env={"JAX_SYMM_INIT_TIMEOUT_S": "20"},
        expected={2: -9},
    )
    first, second, _ = ranks
    assert first.results["before"] == ["multicast", ""]
    assert first.results["after"] == second.results["after"]
    kind, text = first.results["after"]
    assert kind == "SymmPeerLostError", text
    assert "process 2" in text
    assert first.results["seconds"] < 10
    # A kernel of a survivor might still wait for it: what they shared is kept.
    for rank in (first, second):
        assert rank.results["ledger"]["quarantined"] == 1
        assert rank.results["ledger"]["mappings"] == RANKS
    assert first.results["alone"][0] == second.results["alone"][0] == "peers"


def test_call_that_never_returns(machine: FakeMachine) -> None:
    """A rank stuck in a call that nobody watches is named when the deadline passes."""
    ranks = launch(
        machine,
        "lose_a_rank",
        ("p2", "cuMemCreate", 1, "hang"),
        processes=RANKS,
        timeout_s=60,
        env={"JAX_SYMM_INIT_TIMEOUT_S": "4"},
        expected={2: -6},  # jax ends a job whose process 0 has left
    )
    first, second, _ = ranks
    assert first.results["after"] == second.results["after"]
    kind, text = first.results["after"]
    assert kind == "SymmTimeoutError", text
    assert "process 2" in text
    # It lives, so nobody can say that it will not let go.
    assert first.results["ledger"]["quarantined"] == 0
    assert first.results["alone"][0] == second.results["alone"][0] == "peers"


def test_bind_that_never_returns(machine: FakeMachine) -> None:
    (rank,) = launch(machine, "stuck_bind", None, processes=1)
    assert "did not return within 0.5 s" in rank.results["why"]
    assert rank.results["ledger"]["quarantined"] == 1
    assert rank.results["again"][0] == "peers"
    assert "did not return" in rank.results["again"][1]


def test_life(machine: FakeMachine) -> None:
    (rank,) = launch(machine, "life", None, processes=1)
    assert rank.results["multicast_calls"] == []
    left = rank.results["left"]
    assert left["slots"] == 0
    assert left["objects"] <= 1  # the view's, which goes with the process
