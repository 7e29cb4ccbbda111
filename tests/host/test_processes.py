"""Ranks in several processes: CPU devices 2 x 4 and 4 x 2, a GPU each, one GPU for all."""

import ast

import launcher
import pytest
from worlds import world

WORLDS = [
    world("cpu", 2, 4),
    world("cpu", 4, 2),
    world("gpus", 2),
    world("gpus", 4),
    world("gpus", 8),
    world("shared", 2),
    world("shared", 4),
]


def names(*decorators):
    """The checks of the suite, by what they are marked with."""
    source = (launcher.HERE / "programs" / "suite.py").read_text()
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(getattr(d, "id", "") in decorators for d in node.decorator_list)
    ]


def passed(suite, name):
    for number, rank in enumerate(suite):
        outcome, _ = rank.results[name]
        assert outcome == "ok", f"rank {number}:\n{outcome}\n{launcher.logs(suite)}"


@pytest.fixture(scope="module", params=WORLDS)
def suite(request):
    return request.param.launch("suite", "run", timeout_s=240)


@pytest.mark.parametrize("name", names("check", "check_between_processes"))
def test_suite(suite, name):
    passed(suite, name)
