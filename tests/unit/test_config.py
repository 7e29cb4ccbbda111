import pytest

from jax_symm import config
from jax_symm.errors import SymmValueError


def test_defaults():
    defaults = config.parse({})
    assert defaults == config.Settings()
    assert (defaults.path, defaults.init_timeout_s) == ("auto", 300.0)
    assert defaults.multicast_veto is None


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


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("JAX_SYMM_MULTICAST_BUDGET", "multicast_budget"),
        ("JAX_SYMM_MULTICAST_CAPACITY_MIB", "multicast_capacity_mib"),
    ],
)
def test_multicast_amounts(name, field):
    assert getattr(config.parse({name: "17"}), field) == 17
    for text in ("-1", "many", "1.5", "99999999999"):
        with pytest.raises(SymmValueError, match=f"{name}: got '{text}'"):
            config.parse({name: text})


def test_path():
    assert config.parse({"JAX_SYMM_PATH": "XLA"}).path == "xla"
    with pytest.raises(SymmValueError, match="JAX_SYMM_PATH: got 'p2p', expected one"):
        config.parse({"JAX_SYMM_PATH": "p2p"})


def test_a_broken_environment_is_kept_for_set_up(monkeypatch):
    monkeypatch.setenv("JAX_SYMM_PATH", "p2p")
    config.settings.cache_clear()
    try:
        assert config.settings() == config.Settings()
        assert "got 'p2p'" in str(config.problem())
    finally:
        config.settings.cache_clear()
    monkeypatch.undo()
    assert config.problem() is None


def test_settings_that_change_a_path_are_all_compared():
    for name, value in (
        ("JAX_SYMM_PATH", "xla"),
        ("JAX_SYMM_MULTICAST_CAPACITY_MIB", "8"),
    ):
        changed = config.parse({name: value})
        assert changed.path_settings() != config.Settings().path_settings()
