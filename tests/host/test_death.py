"""Bounded waits: a process that dies, stays away, skips a call or makes another.

On CPU devices, on a GPU a process, and on one GPU for all. A signal to a process that
shares a GPU through MPS is undefined there, so these tests run without it.
"""

import pathlib
import signal

import launcher
import pytest
from worlds import world

WORLDS = [world("cpu", 3, 2), world("gpus", 3), world("gpus", 2), world("shared", 3)]


@pytest.fixture(scope="module", params=WORLDS)
def place(request):
    """Where the processes run: rank r of the group lives in process r // devices."""
    return request.param


def timeout_s(place):
    """GPU processes load their kernels meanwhile."""
    return 10.0 if place.on_gpu else 3.0


def victim(place):
    """What ranks of process 1 are called: one of these."""
    ranks = range(place.devices, 2 * place.devices)
    return [f"rank {rank} (process 1" for rank in ranks]


def victim_at_set_up(place):
    if place.devices == 1:
        return "process 1 (rank 1 of group 0)"
    return "process 1 (ranks 2, 3 of group 0)"


def launch(place, function, *, dies):
    return place.launch(
        "death",
        function,
        env={"JAX_SYMM_INIT_TIMEOUT_S": str(timeout_s(place))},
        expected={1: -signal.SIGKILL} if dies else {},
        timeout_s=180 if place.on_gpu else 60,
    )


def errors(place, ranks, name="", *, also_culprit=False):
    """(kind, text) that each process saw, within the time-out.

    A machine under load may take longer than the time-out to say so, never for ever.
    """
    seen = []
    for number, rank in enumerate(ranks):
        if number == 1 and not also_culprit:
            continue
        assert rank.results.get(f"{name}error"), launcher.logs(ranks)
        assert rank.results[f"{name}seconds"] < timeout_s(place) + 20, rank.results
        seen.append(tuple(rank.results[f"{name}error"]))
        seconds = rank.results[f"{name}seconds"]
        print(f"process {number}: {seconds:.2f} s: {': '.join(seen[-1])}")
    return seen


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        ("before_any_meeting", "SymmTimeoutError"),
        ("before_workspace", "SymmPeerLostError"),
    ],
)
def test_death_before_set_up(place, moment, kind):
    """One error, the same text everywhere, which names the dead process's ranks."""
    ranks = launch(place, moment, dies=True)
    seen = errors(place, ranks)
    assert len(set(seen)) == 1, seen
    assert seen[0][0] == kind
    assert victim_at_set_up(place) in seen[0][1]
    assert all(r.results["alone"] for i, r in enumerate(ranks) if i != 1)


@pytest.mark.parametrize("moment", ["between_calls", "inside_a_call"])
def test_death_between_and_inside_calls(place, moment):
    ranks = launch(place, moment, dies=True)
    for _, text in errors(place, ranks):
        assert any(name in text for name in victim(place)), text
    assert all(r.results["alone"] for i, r in enumerate(ranks) if i != 1)


@pytest.fixture(scope="module")
def alive_but_wrong(place):
    return launch(place, "alive_but_wrong", dies=False)


def test_a_process_that_comes_too_late(place, alive_but_wrong):
    """C37: all hear one error, which names it, and the next set-up works."""
    seen = errors(place, alive_but_wrong, "comes_too_late.", also_culprit=True)
    assert len(set(seen)) == 1, seen
    assert seen[0][0] == "SymmTimeoutError"
    assert f"missing: {victim_at_set_up(place)}" in seen[0][1]


def test_a_process_that_skips_a_call(place, alive_but_wrong):
    for kind, text in errors(place, alive_but_wrong, "skips_a_call."):
        assert "DEADLINE_EXCEEDED" in text or kind == "SymmTimeoutError"
        assert any(name in text for name in victim(place)), text


def test_a_process_that_makes_another_call(place, alive_but_wrong):
    """C16, C17: an error on all that says so; never a wrong sum."""
    seen = errors(place, alive_but_wrong, "makes_another_call.", also_culprit=True)
    for _, text in seen:
        if place.on_gpu:
            assert "made another call than" in text
        else:
            assert "gemm_all_reduce" in text
            assert "gemm_reduce_scatter" in text


def test_two_calls_in_opposite_order(place, alive_but_wrong):
    """C16: an error within the time-out on all, and no sum of two different calls."""
    for rank in alive_but_wrong:
        assert not rank.results.get("swaps_two_calls.mixed"), rank.results
    for _, text in errors(
        place, alive_but_wrong, "swaps_two_calls.", also_culprit=True
    ):
        assert "rank" in text


@pytest.mark.parametrize(
    "scenario",
    ["comes_too_late", "skips_a_call", "makes_another_call", "swaps_two_calls"],
)
def test_a_new_workspace_works_afterwards(alive_but_wrong, scenario):
    for rank in alive_but_wrong:
        assert rank.results[f"{scenario}.again"], launcher.logs(alive_but_wrong)


def test_a_clean_exit_is_no_death(place):
    for number, rank in enumerate(launch(place, "leaves_after_closing", dies=False)):
        if number != 1:
            assert rank.results["error"] is None, rank.results
            assert rank.results["alone"]


def leftovers():
    """Names in shared memory and sockets with a path: of ours there are never any."""
    names = {p.name for p in pathlib.Path("/dev/shm").iterdir()}
    paths = pathlib.Path("/proc/net/unix").read_text().splitlines()
    return {n for n in names if "symm" in n} | {p for p in paths if "jax_symm" in p}


def test_death_of_the_first_process_leaves_nothing():
    """JAX ends all processes when the coordinator is gone; memory goes with them."""
    ranks = launcher.launch(
        "death",
        "first_process_dies",
        processes=2,
        devices=2,
        env={"JAX_SYMM_INIT_TIMEOUT_S": "3"},
        expected={0: -signal.SIGKILL, 1: None},
        timeout_s=30,
    )
    assert ranks[1].results["ready"]
    assert ranks[1].status != 0
    assert "coordination" in ranks[1].log.lower(), ranks[1].log
    assert not leftovers()
