"""Where a program of several processes runs: CPU devices, a GPU each, one GPU for all."""

import dataclasses
import os
from typing import Any

import launcher
import pytest


@dataclasses.dataclass(frozen=True)
class World:
    """Processes, and what each has; `kind` is "cpu", "gpus" or "shared"."""

    kind: str
    processes: int
    devices: int

    @property
    def ranks(self):
        return self.processes * self.devices

    @property
    def on_gpu(self):
        return self.kind != "cpu"

    def launch(self, program, function, *, env=None, env_of_rank=None, **options):
        """`launcher.launch` there."""
        own = {
            rank: {
                **self._environment(rank),
                **(env or {}),
                **(env_of_rank or {}).get(rank, {}),
            }
            for rank in range(self.processes)
        }
        return launcher.launch(
            program,
            function,
            processes=self.processes,
            devices=self.devices,
            env_of_rank=own,
            **options,
        )

    def _environment(self, rank):
        if not self.on_gpu:
            return {}
        first = 0 if self.kind == "shared" else rank * self.devices
        # Of those that this process may use itself.
        listed = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(64)))
        visible = listed.split(",")[first : first + self.devices]
        return {
            "JAX_PLATFORMS": "cuda,cpu",
            "CUDA_VISIBLE_DEVICES": ",".join(visible),
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",
            "CUDA_MODULE_LOADING": "EAGER",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            # Of many small programs each would otherwise be tuned.
            "XLA_FLAGS": "--xla_gpu_autotune_level=0",
            # Multicast is another rung's; between processes of one host NCCL needs no network.
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_SOCKET_IFNAME": "lo",
            # NCCL takes ranks on one GPU only for ranks of two hosts.
            **({"NCCL_HOSTID": f"host{rank}"} if self.kind == "shared" else {}),
            "TEST_RANKS_PER_GPU": str(self.processes if self.kind == "shared" else 1),
        }


def world(kind: str, processes: int, devices: int = 1) -> Any:
    """A parameter of a test, marked with what it needs."""
    made = World(kind, processes, devices)
    marks = {
        "cpu": [],
        "gpus": [pytest.mark.multigpu(made.ranks)],
        "shared": [pytest.mark.requires("gpu")],
    }
    return pytest.param(made, id=f"{kind}-{processes}x{devices}", marks=marks[kind])
