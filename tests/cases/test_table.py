"""The table of the README is true: each case has its tests, and each of them names its case."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

CASES = {
    *(f"API-{n:02d}" for n in (1, 2, 3, 4, 6, 7, 9, 10, 11, 13, 15, 17, 19, 20, 21)),
    *(f"CAN-{n:02d}" for n in (1, 2, 3, 5, 6, 8)),
    *(f"PD-{n:02d}" for n in (1, 2, 3, 4, 5, 7, 11, 12, 13, 16)),
    *(f"RT-{n:02d}" for n in (1, 4, 10, 11)),
    *(f"NATS-{n:02d}" for n in (1, 3, 4, 5, 7, 8, 10, 12, 14)),
    *(f"OPS-{n:02d}" for n in (3, 4, 5, 6, 8, 11)),
    *(f"OBS-{n:02d}" for n in (1, 3)),
    *(f"UCX-{n:02d}" for n in (1, 2, 3, 5, 8, 9, 10)),
}
"""What can be had without a GPU, of the families that are about the API and its requests."""

ROW = re.compile(r"^\| ([A-Z]+-\d\d) \| (.*) \| .*\|$")


def rows() -> dict[str, list[str]]:
    """Return the tests of each case."""
    lines = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    found = [match for line in lines if (match := ROW.match(line))]
    return {match[1]: re.findall(r"`([^`]+)`", match[2]) for match in found}


def docstring(test: str) -> str:
    """Return the docstring of a test, as the table names it."""
    place, _, name = test.partition("::")
    path = ROOT / place if "/" in place else HERE / place
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    raise AssertionError(f"{test} is not there")


def test_every_case_has_its_row() -> None:
    """No case is missing, and none is there twice or by mistake."""
    assert set(rows()) == CASES


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_tests_of_a_case_name_it(case: str) -> None:
    """Each test that a row names exists, and has the case's id in its docstring."""
    tests = rows()[case]
    assert tests
    assert [test for test in tests if case not in docstring(test)] == []
