"""Whole jobs: unequal environments, late starts, second lives, quiet exits."""

import launcher
import pytest
from worlds import world


def launch(function, **options):
    options = {"processes": 2, "devices": 2, **options}
    return launcher.launch("job", function, timeout_s=100, **options)


@pytest.mark.parametrize(
    "place", [world("cpu", 2, 2), world("gpus", 2), world("shared", 2)]
)
def test_unequal_setting_of_the_path(place):
    """C17: every process raises the same error, which holds each one's value."""
    unequal = {0: {"JAX_SYMM_PATH": "host"}}
    ranks = place.launch("job", "refused", env_of_rank=unequal, timeout_s=100)
    errors = {tuple(rank.results["error"]) for rank in ranks}
    assert len(errors) == 1
    ((kind, text),) = errors
    assert kind == "SymmValueError"
    assert "JAX_SYMM_PATH=host" in text
    assert "JAX_SYMM_PATH=auto" in text


def test_a_broken_setting_of_one_process():
    ranks = launch("refused", env_of_rank={1: {"JAX_SYMM_PATH": "p2p"}})
    for rank in ranks:
        kind, text = rank.results["error"]
        assert kind == "SymmValueError"
        assert "JAX_SYMM_PATH: got 'p2p'" in text


def test_a_site_that_forbids_multicast():
    """C17: a veto of one process is everyone's reason, not an error."""
    ranks = launch("works", env_of_rank={1: {"NCCL_NVLS_ENABLE": "0"}})
    for rank in ranks:
        assert all(rank.results["no_multicast"])


def test_a_late_start():
    """C37: within JAX_SYMM_INIT_TIMEOUT_S a late process is only late."""
    launch("late_start")


def test_two_lives():
    """C37: shut down, initialised again, and everything works once more."""
    launch("two_lives", argument=launcher.free_port())


def test_a_compilation_cache_that_processes_share(tmp_path):
    """C23: JAX keeps what process 0 compiled; the others must not be a launch apart."""
    env = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for max_m in (16, 16, 64):
        first, second = launch("compiles_again", argument=max_m, env=env)
        assert first.results["written"] > 0, "the cache is on"
        assert first.results["text"] == second.results["text"]


def test_executables_that_every_process_serialised():
    """C23: loaded in all processes they count their launches alike."""
    launch("loads_what_it_serialised")


def test_a_long_temporary_folder(tmp_path):
    """C36: addresses of sockets do not depend on it."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    launch("works", env={"TMPDIR": str(deep)})
    assert not list(deep.iterdir())


def test_two_jobs_on_one_host():
    """C36: started together, they do not meet."""
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(launch, "works") for _ in range(2)]
        for job in jobs:
            job.result()


def test_unequal_order_of_set_ups():
    """C32: an error with both axes on every process, each time."""
    for rank in launch("two_axes_in_another_order"):
        for axis in ("a", "b"):
            kind, text = rank.results[axis]
            assert kind == "SymmValueError"
            assert "axes is ['a'] in process 0 but ['b'] in process 1" in text or (
                "axes is ['b'] in process 0 but ['a'] in process 1" in text
            )


def test_a_quiet_exit():
    """C37: nothing is printed, and nobody waits, when a program just ends."""
    for rank in launch("leaves_without_closing"):
        noise = [line for line in rank.log.splitlines() if "[Gloo]" not in line]
        assert not [line for line in noise if line.strip()], rank.log


@pytest.mark.parametrize("seconds", ["soon", "-1"])
def test_a_broken_time_out(seconds):
    for rank in launch(
        "refused", processes=1, env={"JAX_SYMM_INIT_TIMEOUT_S": seconds}
    ):
        assert "JAX_SYMM_INIT_TIMEOUT_S: got" in rank.results["error"][1]
