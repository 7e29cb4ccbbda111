"""Runs a function of a program file in several processes that JAX joins.

The outcome of a launch is the worst of all ranks; a failure holds every rank's log.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Rank:
    """One process of a launch: its exit status (-n: signal n), log and results."""

    status: int
    log: str
    results: dict


class LaunchError(AssertionError):
    """A rank ended otherwise than it should; the text holds every rank's log."""


def free_port():
    """A port below those that the kernel gives to outgoing connections."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            return port


def launch(
    program,
    function,
    *,
    processes,
    devices,
    timeout_s=120,
    env=None,
    env_of_rank=None,
    argument=None,
    expected=None,
    prefix=(),
    distributed=None,
):
    """Runs `function(argument)` of `tests/host/programs/<program>.py` in every process.

    Args:
      devices: CPU devices of each process.
      timeout_s: After this every process shows its stacks and is killed.
      env: Environment for all ranks.
      env_of_rank: rank -> environment for that rank.
      argument: A JSON value for the function.
      expected: rank -> exit status, where it is not 0; None for any.
      prefix: A command that the ranks are run under.
      distributed: Further arguments of `jax.distributed.initialize`.

    Returns:
      The ranks.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(processes):
            own = {**(env or {}), **(env_of_rank or {}).get(rank, {})}
            spec = {
                "program": str(HERE / "programs" / f"{program}.py"),
                "function": function,
                "argument": argument,
                "rank": rank,
                "processes": processes,
                "port": port,
                "distributed": distributed or {},
                "timeout_s": timeout_s,
                "results": str(pathlib.Path(folder, f"{rank}.json")),
            }
            with pathlib.Path(folder, f"{rank}.log").open("w") as out:
                started.append(
                    subprocess.Popen(
                        [*prefix, sys.executable, HERE / "worker.py", json.dumps(spec)],
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        env=_environment(devices, own),
                    )
                )
        statuses = _wait(started, timeout_s + 10)
        ranks = [
            Rank(
                status,
                pathlib.Path(folder, f"{r}.log").read_text(),
                _results(pathlib.Path(folder, f"{r}.json")),
            )
            for r, status in enumerate(statuses)
        ]
    wanted = [(expected or {}).get(r, 0) for r in range(processes)]
    if any(w not in (None, s) for w, s in zip(wanted, statuses, strict=True)):
        raise LaunchError(
            f"ranks ended with {statuses}, expected {wanted}\n{logs(ranks)}"
        )
    return ranks


def logs(ranks):
    return "\n".join(f"--- rank {i}: {r.status}\n{r.log}" for i, r in enumerate(ranks))


def _results(path):
    return json.loads(path.read_text()) if path.exists() else {}


def _environment(devices, own):
    keep = {k: v for k, v in os.environ.items() if not k.startswith("JAX_SYMM_")}
    return {
        **keep,
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_PLATFORMS": "cpu",
        "PJRT_NPROC": "64",
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]]),
        **own,
    }


def _wait(started, timeout_s):
    end = time.monotonic() + timeout_s
    statuses = []
    for process in started:
        try:
            statuses.append(process.wait(max(0.1, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            statuses.append(process.wait())
    return statuses
