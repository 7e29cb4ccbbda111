"""The phase rule by hand; anchors/test_hardware_tables has the measured sequences."""

from __future__ import annotations

import pytest

from ptx_emulator.semantics.barrier_phase import MAX_COUNT, BarrierPhase


def test_phase_needs_arrivals_and_bytes():
    barrier = BarrierPhase(2)
    assert not barrier.arrive(1, expect=64)
    assert not barrier.arrive()
    assert not barrier.complete(48)
    assert barrier.complete(16)
    assert barrier.phase == 1
    assert barrier.pending == 2


def test_completion_may_come_first():
    barrier = BarrierPhase(1)
    assert not barrier.complete(64)
    assert barrier.transactions == -64
    assert barrier.arrive(expect=64)


def test_parity_of_a_fresh_barrier():
    barrier = BarrierPhase(1)
    assert not barrier.test_parity(0)
    assert barrier.test_parity(1)


def test_drop_lowers_the_count_of_later_phases():
    barrier = BarrierPhase(3)
    assert not barrier.arrive(drop=True)
    assert barrier.arrive(2)
    assert barrier.pending == 2


@pytest.mark.parametrize("count", [0, MAX_COUNT + 1])
def test_refuses_counts(count):
    with pytest.raises(ValueError, match="mbarrier count"):
        BarrierPhase(count)


def test_refuses_over_arrival_and_overflow():
    barrier = BarrierPhase(2)
    with pytest.raises(ValueError, match="2 pending"):
        barrier.arrive(3)
    with pytest.raises(ValueError, match="transaction count"):
        barrier.expect(MAX_COUNT + 1)
