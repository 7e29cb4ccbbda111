import pytest

from jax_symm import config
from jax_symm.errors import SymmValueError


def test_defaults():
    assert config.parse({}) == config.Settings("auto", 300.0, None)


@pytest.mark.parametrize(
    ("name", "no"),
    [
        ("JAX_SYMM_MULTICAST", "0"),
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ],
)
def test_site_forbids_multicast(name, no):
    assert config.parse({name: no}).multicast_veto == f"{name}={no}"
    yes = "1" if no == "0" else "0"
    assert config.parse({name: yes}).multicast_veto is None


def test_init_timeout():
    assert config.parse({"JAX_SYMM_INIT_TIMEOUT_S": "2.5"}).init_timeout_s == 2.5


@pytest.mark.parametrize("text", ["soon", "0", "-1", "1e9", "nan"])
def test_bad_timeout(text):
    with pytest.raises(SymmValueError, match=f"JAX_SYMM_INIT_TIMEOUT_S: got '{text}'"):
        config.parse({"JAX_SYMM_INIT_TIMEOUT_S": text})


def test_path():
    assert config.parse({"JAX_SYMM_PATH": "XLA"}).path == "xla"
    with pytest.raises(SymmValueError, match="JAX_SYMM_PATH: got 'p2p', expected one"):
        config.parse({"JAX_SYMM_PATH": "p2p"})


def test_settings_that_change_a_path_are_all_compared():
    changed = config.parse({"JAX_SYMM_PATH": "xla"})
    assert changed.path_settings() != config.Settings().path_settings()
