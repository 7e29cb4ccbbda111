"""Symmetric memory on a real GPU: several processes on one device.

No test here makes a multicast object: the driver table of the workers aborts on it.
"""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator

import launcher
import pytest
from hub import Hub
from ranks import MIB, Setup
from test_matrix import one_verdict

from jax_symm import config
from jax_symm.errors import SymmUnavailableError

pytestmark = [pytest.mark.requires("gpu"), pytest.mark.timeout(300)]

PROGRAM = str(pathlib.Path(__file__).with_name("memory_ranks"))


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Iterator[Hub]:
    """Processes that share GPU 0."""
    made = Hub([{} for _ in range(getattr(request, "param", 2))], 60.0)
    yield made
    made.close()


def group(hub: Hub) -> list[list[tuple[int, int]]]:
    return [[(process, 0) for process in range(len(hub._workers))]]


@pytest.mark.parametrize("hub", [2, 4], indirect=True)
def test_processes_share_memory(hub: Hub) -> None:
    """Each sees what the others wrote, into their own parts and into its part."""
    ranks = len(hub._workers)
    setup = Setup("share", group(hub))
    verdict = one_verdict(hub.run("open_kept", {"setup": setup}))
    assert verdict[0] == "peers", verdict
    assert "ranks 0 and 1 share one GPU" in verdict[2]
    assert hub.run("check_kept", {"name": "share"}) == [None] * ranks
    hub.run("write_to_peers", {"name": "share"})
    seen = hub.run("peek", {"name": "share", "offset": 8192, "nbytes": ranks})
    assert seen == [[bytes(range(1, ranks + 1))] * ranks] * ranks
    hub.run("close_kept", {"name": "share"})


def test_five_hundred_cycles(hub: Hub) -> None:
    """The GPU has as much free memory afterwards as before."""
    setup = Setup("warm", group(hub), "never", nbytes=64 * MIB)
    hub.run("open_and_close", {"setup": setup})
    before = hub.run("free_bytes", {})
    for number in range(500):
        setup = Setup(f"cycle{number}", group(hub), "never", nbytes=64 * MIB)
        hub.run("open_and_close", {"setup": setup})
    assert hub.run("free_bytes", {}) == before
    for counts in hub.run("ledger", {}):
        assert counts == dict.fromkeys(counts, 0)


def test_fabric_is_believed_only_after_a_trial(hub: Hub) -> None:
    """Between hosts the trial decides, whatever the attribute promises."""
    refusals = hub.run("probe_fabric", {})
    _, attribute, multicast = hub.run("facts", {})[0]
    print(f"fabric attribute {attribute}, trial: {refusals[0] or 'works'}")
    assert not multicast  # the forbidding table hides it
    setup = Setup("hosts", group(hub), "never", hosts=("a", "b"))
    verdict = one_verdict(hub.run("open_and_close", {"setup": setup}))
    if refusals[0] or not attribute:
        assert verdict[1] == SymmUnavailableError.__name__
        assert "fabric handles do not work in process 0" in verdict[2]
    else:
        assert verdict[0] == "peers", verdict


def test_out_of_memory_names_the_setting(hub: Hub) -> None:
    setup = Setup("huge", group(hub), "never", nbytes=1 << 40)
    verdict = one_verdict(hub.run("open_and_close", {"setup": setup}))
    assert verdict[1] == "SymmMemoryError"
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in verdict[2]


def gpu_environment(**more: str) -> dict[str, str]:
    return {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1",
        "CUDA_MODULE_LOADING": "EAGER",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
        **more,
    }


def test_arrays_without_a_copy() -> None:
    (rank,) = launcher.launch(
        PROGRAM,
        "views",
        processes=1,
        devices=1,
        env=gpu_environment(JAX_PLATFORMS="cuda,cpu"),
    )
    assert rank.results["ledger"]["mappings"] == 0


@pytest.mark.parametrize("platforms", ["cuda,cpu", "cuda"])
def test_votes_of_cuda_processes(platforms: str) -> None:
    """With CPU devices beside the GPU the vote runs there; without, over the GPUs."""
    ranks = launcher.launch(
        PROGRAM,
        "together",
        processes=2,
        devices=1,
        env=gpu_environment(JAX_PLATFORMS=platforms),
        # NCCL takes ranks on one GPU only for ranks of two hosts.
        env_of_rank={rank: {"NCCL_HOSTID": f"host{rank}"} for rank in range(2)},
    )
    for rank in ranks:
        assert rank.results["votes"] == [True, False]
        # A site's no, if there is one, comes before what the GPUs could do.
        veto = config.settings().multicast_veto
        assert (veto or "share one GPU") in rank.results["why"]
        assert rank.results["seen"] == [1, 2]


# Signals to a client of MPS are undefined, so this runs without it, and last.
@pytest.mark.skipif("CUDA_MPS_PIPE_DIRECTORY" in os.environ, reason="MPS is on")
def test_killed_process_leaves_its_peer_readable(hub: Hub) -> None:
    hub.run("open_kept", {"setup": Setup("killed", group(hub), "never")})
    hub.run("write", {"name": "killed", "data": b"data"})
    victim = hub._workers[1]
    assert victim is not None
    assert victim.process.pid is not None
    os.kill(victim.process.pid, signal.SIGKILL)
    victim.process.join(30)
    seen = hub.run("peek", {"name": "killed", "offset": 0, "nbytes": 4}, only=[0])
    assert seen == [[b"data"] * 2]
    hub.run("close_kept", {"name": "killed"}, only=[0])
    hub.discard(1)
    again = one_verdict(
        hub.run("open_and_close", {"setup": Setup("again", group(hub), "never")})
    )
    assert again[0] == "peers"
