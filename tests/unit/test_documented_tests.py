"""A document that names a test names one that exists."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TABLE = ROOT / "docs" / "design" / "transformations.md"
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", TABLE.read_text())))


def test_the_table_names_tests():
    assert len(NAMED) > 70


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_named_tests_exist(file):
    folder = ROOT if "/" in file else ROOT / "tests" / "host" / "transforms"
    tree = ast.parse((folder / file).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {test for named, test in NAMED if named == file} <= defined
