"""What a workspace says on platforms that have no runtime for it."""

import pytest

from jax_symm import _native, workspace
from jax_symm.errors import SymmUnsupportedError


def test_cpu_devices_always_have_workspaces():
    assert workspace._check_platform("cpu") is None


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_other_platforms_need_kernels(platform, monkeypatch):
    """Their memory is not for the host to read and write."""
    monkeypatch.setattr(_native.module(), "cuda_kernel_architectures", list)
    refusal = workspace._check_platform(platform)
    assert isinstance(refusal, SymmUnsupportedError)
    assert f"{platform} devices" in str(refusal)


def test_kernels_bring_workspaces_on_gpus(monkeypatch):
    monkeypatch.setattr(_native.module(), "cuda_kernel_architectures", lambda: ["sm90"])
    assert workspace._check_platform("gpu") is None
    assert isinstance(workspace._check_platform("tpu"), SymmUnsupportedError)
