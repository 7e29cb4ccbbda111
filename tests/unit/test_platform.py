"""What a workspace says to devices that it cannot be on."""

import dataclasses

import pytest

from jax_symm import _native
from jax_symm._workspace_request import check_devices
from jax_symm.errors import SymmUnsupportedError
from jax_symm.group import MeshGroups


@dataclasses.dataclass(frozen=True)
class Device:
    platform: str
    compute_capability: str = "9.0"


def refusal(*devices):
    return check_devices(MeshGroups(("tp",), (devices,)))


def test_cpu_devices_always_have_workspaces():
    assert refusal(Device("cpu")) is None


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_other_platforms_need_kernels(platform, monkeypatch):
    """Their memory is not for the host to read and write."""
    monkeypatch.setattr(_native.module(), "cuda_kernel_architectures", list)
    refused = refusal(Device(platform))
    assert isinstance(refused, SymmUnsupportedError)
    assert f"{platform} devices" in str(refused)


def test_kernels_bring_workspaces_on_gpus(monkeypatch):
    monkeypatch.setattr(_native.module(), "cuda_kernel_architectures", lambda: ["sm90"])
    assert refusal(Device("gpu")) is None
    assert isinstance(refusal(Device("tpu")), SymmUnsupportedError)


def test_gpus_of_two_kinds(monkeypatch):
    """Their kernels would not take each other's tiles."""
    monkeypatch.setattr(_native.module(), "cuda_kernel_architectures", lambda: ["sm90"])
    refused = refusal(Device("gpu"), Device("gpu", "10.0"), Device("gpu"))
    assert isinstance(refused, SymmUnsupportedError)
    assert "compute capabilities 10.0, 9.0, expected one" in str(refused)
