"""Bounded waits: a process that dies, stays away, skips a call or makes another.

On CPU devices, on a GPU a process, and on one GPU for all. A signal to a process that
shares a GPU through MPS is undefined there, so these tests run without it.
"""

import contextlib
import os
import pathlib
import re
import signal

import launcher
import pytest
from worlds import world

SHARP_BITS = pathlib.Path(__file__).parents[2] / "docs" / "sharp_bits.md"
CPU = world("cpu", 3, 2)
WORLDS = [CPU, world("gpus", 3), world("gpus", 2), world("shared", 3)]


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


def bound_s(place):
    """Longest time from the beginning of a call that waits to its error.

    On CPU devices it is the one that is promised, whatever the load.
    """
    return timeout_s(place) + (20 if place.on_gpu else 2)


def launch(place, function, *, dies, **options):
    options = {"expected": {1: -signal.SIGKILL} if dies else {}, **options}
    ranks = place.launch(
        "death",
        function,
        env={"JAX_SYMM_INIT_TIMEOUT_S": str(timeout_s(place))},
        timeout_s=180,
        **options,
    )
    assert not leftovers(ranks)
    return ranks


def leftovers(ranks):
    """Shared memory and sockets that ended processes left: files by inode, and names."""
    inodes = {inode for rank in ranks for inode in rank.results.get("memory", ())}
    names = {p.name for p in pathlib.Path("/dev/shm").iterdir()}
    paths = pathlib.Path("/proc/net/unix").read_text().splitlines()
    return (
        (inodes & open_memory_files())
        | {n for n in names if "symm" in n}
        | {p for p in paths if "jax_symm" in p}
    )


def open_memory_files():
    """Inodes of symmetric memory that any process maps or holds a descriptor of."""
    found = set()
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            lines = maps.read_text().splitlines()
            found |= {line.split()[4] for line in lines if "memfd:jax_symm" in line}
    for fd in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if "memfd:jax_symm" in str(fd.readlink()):
                found.add(str(fd.stat().st_ino))
    return found


def errors(place, ranks, name="", *, also_culprit=False):
    """(kind, text) that each process saw, within `bound_s`."""
    seen = []
    for number, rank in enumerate(ranks):
        if number == 1 and not also_culprit:
            continue
        assert rank.results.get(f"{name}error"), launcher.logs(ranks)
        assert rank.results[f"{name}seconds"] < bound_s(place), rank.results
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


@pytest.mark.parametrize(
    ("scenario", "both"),
    [
        ("makes_another_call", ["gemm_all_reduce", "gemm_reduce_scatter"]),
        ("makes_a_smaller_call", ["m=18", "m=17"]),
    ],
)
def test_a_process_that_makes_another_call(place, alive_but_wrong, scenario, both):
    """C16, C17: an error on all that says so; never a wrong sum."""
    seen = errors(place, alive_but_wrong, f"{scenario}.", also_culprit=True)
    for _, text in seen:
        expected = ["made another call than"] if place.on_gpu else both
        assert all(part in text for part in expected), text


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
    [
        "comes_too_late",
        "skips_a_call",
        "makes_another_call",
        "makes_a_smaller_call",
        "swaps_two_calls",
    ],
)
def test_a_new_workspace_works_afterwards(alive_but_wrong, scenario):
    for rank in alive_but_wrong:
        assert rank.results[f"{scenario}.again"], launcher.logs(alive_but_wrong)


def test_a_clean_exit_is_no_death(place):
    for number, rank in enumerate(launch(place, "leaves_after_closing", dies=False)):
        if number != 1:
            assert rank.results["error"] is None, rank.results
            assert rank.results["alone"]


def test_a_leftover_would_be_seen():
    fd = os.memfd_create("jax_symm")
    assert str(os.fstat(fd).st_ino) in open_memory_files()
    os.close(fd)


@pytest.mark.parametrize("collective", ["psum", "psum_scatter"])
@pytest.mark.parametrize("place", [CPU], indirect=True)
def test_death_inside_a_collective_of_xla(place, collective):
    """XLA's call fails, or wedges until JAX ends the process; ours is neither."""
    ranks = launch(
        place,
        "inside_a_collective_of_xla",
        dies=True,
        argument=collective,
        expected={0: None, 1: -signal.SIGKILL, 2: None},
        distributed={"heartbeat_timeout_seconds": 20},
    )
    for kind, text in errors(place, ranks):
        assert kind == "SymmPeerLostError"
        assert any(name in text for name in victim(place)), text
    for survivor in (ranks[0], ranks[2]):
        assert survivor.results["close.error"] is None, survivor.results
        assert survivor.results["memory"]
        assert not survivor.results["memory_after_close"]
        outcome = survivor.results.get("collective", "never came")
        assert outcome, "a sum without the dead process's part"
        print(f"XLA's {collective}: {outcome}")
        if outcome == "never came":
            assert survivor.status == -signal.SIGABRT
            assert "stopped sending heartbeats" in survivor.log


@pytest.mark.parametrize("recoverable", [False, True])
@pytest.mark.parametrize("place", [world("cpu", 2, 2)], indirect=True)
def test_death_of_the_first_process_leaves_nothing(place, recoverable):
    """JAX ends all processes when the coordinator is gone; memory goes with them."""
    ranks = launch(
        place,
        "first_process_dies",
        dies=True,
        expected={0: -signal.SIGKILL, 1: -signal.SIGABRT},
        env_of_rank={
            r: {"JAX_ENABLE_RECOVERABILITY": str(recoverable)} for r in (0, 1)
        },
    )
    assert ranks[1].results["memory"]
    (quoted,) = re.findall("^  > (.*)$", SHARP_BITS.read_text(), re.M)
    assert quoted in ranks[1].log, ranks[1].log
