"""What a workspace says on platforms that have no runtime for it."""

from jax_symm import workspace
from jax_symm.errors import SymmUnsupportedError


def test_only_cpu_devices_have_workspaces():
    """Its runtime reads and writes from the host, which GPU memory does not bear."""
    assert workspace._check_platform("cpu") is None
    refusal = workspace._check_platform("gpu")
    assert isinstance(refusal, SymmUnsupportedError)
    assert "gpu devices" in str(refusal)
