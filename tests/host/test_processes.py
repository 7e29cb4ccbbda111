"""Several processes on one host, as 2 x 4 and 4 x 2 devices."""

import ast

import launcher
import pytest

SHAPES = [(2, 4), (4, 2)]


def names():
    source = (launcher.HERE / "programs" / "suite.py").read_text()
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(getattr(d, "id", "") == "check" for d in node.decorator_list)
    ]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def suite(request):
    processes, devices = request.param
    return launcher.launch(
        "suite", "run", processes=processes, devices=devices, timeout_s=240
    )


@pytest.mark.parametrize("name", names())
def test_suite(suite, name):
    for number, rank in enumerate(suite):
        outcome, _ = rank.results[name]
        assert outcome == "ok", f"rank {number}:\n{outcome}\n{launcher.logs(suite)}"
