"""Judging, sampling and the account, with runners that are plain functions."""

from __future__ import annotations

import pytest

from ptx_emulator.errors import EmulationError
from ptx_emulator.mutation import rules, score

PTX = "bar.sync 0;\nbar.sync 1;\nfence.proxy.alias;\n"
BARRIER, OTHER, FENCE = rules.mutants(PTX)
EDGE = score.Equivalent("the barrier of line 1 orders it", ((1, "bar.sync 0"),))


def test_judge_stops_at_the_first_schedule_that_notices():
    seen = []

    def runner(text, schedule):
        seen.append(schedule)
        return "wrong values" if schedule == 1 else None

    assert score.judge(FENCE, runner, 5) == score.Verdict(FENCE, "wrong values", 2)
    assert seen == [0, 1]


def test_judge_counts_strict_errors_as_noticed():
    def runner(text, schedule):
        raise EmulationError("poison", "register")

    assert score.judge(FENCE, runner, 2).how == "poison: register"


def test_judge_refuses_a_form_that_the_emulator_does_not_know():
    def runner(text, schedule):
        raise EmulationError("unsupported", "opcode")

    with pytest.raises(RuntimeError, match="fence"):
        score.judge(FENCE, runner, 2)


def test_tally_and_table():
    verdicts = [
        score.Verdict(BARRIER, "race", 1),
        score.Verdict(OTHER, None, 3),
        score.Verdict(FENCE, None, 3),
    ]
    got = score.tally(verdicts, {OTHER.name: EDGE})
    assert got["wait"] == score.Tally(1, 1, 2)
    assert got["wait"].score == 1.0
    assert got["all"].score == 0.5
    assert "| fence | 0 | 0 | 1 | 0.00 |" in score.table(got)


def test_sample_is_fixed_and_covers_families():
    mutants = rules.mutants(PTX * 20)
    chosen = score.sample(mutants, 6)
    assert chosen == score.sample(mutants, 6)
    assert {m.family for m in chosen} == {"wait", "fence"}
    assert len({m.name for m in chosen}) == len(chosen) == 6


def test_equivalents_name_what_stands_on_their_lines():
    score.check_equivalents(PTX, {OTHER.name: EDGE})
    for edges, message in ((((2, "bar.sync 0"),), "line 2"), ((), "no edge")):
        entry = score.Equivalent("", edges)
        with pytest.raises(ValueError, match=message):
            score.check_equivalents(PTX, {OTHER.name: entry})
