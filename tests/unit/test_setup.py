"""What owners that were dropped leave behind."""

import pytest

from jax_symm import _backends, _setup
from jax_symm.errors import SymmUnavailableError


class Held:
    def __init__(self, released):
        self._released = released

    def release(self):
        self._released.append(self)


class Backend:
    """Runs `then` while a device is waited for, as a collection may."""

    def __init__(self, then):
        self._then = then

    def synchronize(self, device):
        self._then()


def test_a_finaliser_may_run_while_others_are_seen_to(monkeypatch):
    released = []
    first, second = Held(released), Held(released)

    def collect():
        if not any(item is second for _, item in _setup._abandoned):
            _setup.abandon("cpu", [second])

    monkeypatch.setitem(_backends._installed, "cpu", Backend(collect))
    _setup.abandon("cpu", [first])
    assert _setup.release_abandoned() is None
    assert released == [first]
    monkeypatch.setitem(_backends._installed, "cpu", Backend(lambda: None))
    assert _setup.release_abandoned() is None
    assert released == [first, second]


def test_a_device_that_fails_loses_nothing(monkeypatch):
    released = []
    items = [Held(released), Held(released)]

    def fail():
        raise RuntimeError("the device is in error")

    monkeypatch.setitem(_backends._installed, "cpu", Backend(fail))
    _setup.abandon("cpu", items)
    failure = _setup.release_abandoned()
    assert isinstance(failure, SymmUnavailableError)
    assert "the device is in error" in str(failure)
    monkeypatch.setitem(_backends._installed, "cpu", Backend(lambda: None))
    assert _setup.release_abandoned() is None
    assert released == items


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not _setup._abandoned
