"""Mutants of the anchors are noticed, except those on record.

A fixed sample of 60 runs in every test run; JAX_SYMM_TEST_FULL=1 judges all mutants of
three anchors (about an hour).
"""

from __future__ import annotations

import os

import pytest

from ptx_emulator.anchors import cutlass
from ptx_emulator.mutation import rules, score
from ptx_emulator.mutation.anchor_runner import SCHEDULES, runner
from ptx_emulator.mutation.known import COMPILER, known_mutants

pytestmark = pytest.mark.requires("nvcc", "cutlass")
FULL = os.environ.get("JAX_SYMM_TEST_FULL") == "1"
SAMPLED = (cutlass.SM100_ONE_SM, cutlass.SM90_WGMMA)
JUDGED = (*SAMPLED, cutlass.SM100_TWO_SM) if FULL else SAMPLED
SAMPLE = 30  # of each anchor
PARTS = 10  # so that parallel workers share an anchor


def build(anchor: cutlass.GemmAnchor) -> cutlass.BuiltGemm:
    """The anchor, if this compiler's PTX is the one that the records are about."""
    built = cutlass.build(anchor)
    if COMPILER not in built.ptx:
        pytest.skip(f"the records are of nvcc {COMPILER}")
    return built


@pytest.mark.timeout(3600 if FULL else 600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("anchor", JUDGED, ids=lambda anchor: anchor.name)
def test_mutants_are_noticed(anchor, part):
    built, known = build(anchor), known_mutants(anchor.name)
    run = runner(anchor, built)
    mutants = rules.mutants(built.ptx)
    chosen = mutants if FULL else score.sample(mutants, SAMPLE)
    survivors, revived = [], []
    for mutant in chosen[part::PARTS]:
        noticed = score.judge(mutant, run, SCHEDULES).how
        if noticed and mutant.name in known.equivalent:
            revived.append(f"{mutant.name}: {noticed}")
        if not noticed and mutant.name not in {*known.equivalent, *known.unexplained}:
            survivors.append(f"{mutant.name}, line {mutant.line}")
    assert not survivors, "not noticed, and not on record"
    assert not revived, "on record as equivalent, but noticed"


@pytest.mark.parametrize("anchor", JUDGED, ids=lambda anchor: anchor.name)
def test_records_name_real_mutants_and_edges(anchor):
    ptx, known = build(anchor).ptx, known_mutants(anchor.name)
    score.check_equivalents(ptx, known.equivalent)
    names = {mutant.name for mutant in rules.mutants(ptx)}
    assert names >= {*known.equivalent, *known.unexplained}
