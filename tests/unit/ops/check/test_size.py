"""The size guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.check.size import ROOTS, violations


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ROOTS:
        (tmp_path / name).mkdir()
    return tmp_path


def body(lines: int) -> str:
    return "def work():\n" + "    pass\n" * lines


def test_a_small_tree_is_fine(tree: Path):
    """What is within all limits is not mentioned."""
    (tree / "libs" / "a.py").write_text(body(49))
    assert list(violations(tree)) == []


def test_a_long_function_is_named_with_its_line(tree: Path):
    """A function over its limit is reported where it stands."""
    (tree / "libs" / "a.py").write_text("\n" + body(50))
    assert list(violations(tree)) == ["libs/a.py:2: work: 51 lines (at most 50)"]


def test_a_docstring_is_not_counted(tree: Path):
    """Explaining a function does not make it too long."""
    text = (
        "def work():\n" + '    """First.\n' + "\n    More.\n" * 10 + '    """\n' + "    pass\n" * 49
    )
    (tree / "libs" / "a.py").write_text(text)
    assert list(violations(tree)) == []


def test_a_long_module_is_named_and_tests_may_be_longer(tree: Path):
    """Modules have 400 lines at most, tests 800."""
    (tree / "libs" / "a.py").write_text("x = 1\n" * 401)
    (tree / "tests" / "test_a.py").write_text("x = 1\n" * 800)
    assert list(violations(tree)) == ["libs/a.py:1: 401 lines (at most 400)"]


def test_a_crowded_folder_is_named(tree: Path):
    """A folder has 12 modules at most, its `__init__` not counted; `proto` is flat on purpose."""
    for folder in (tree / "libs", tree / "proto"):
        (folder / "__init__.py").write_text("")
        for number in range(13):
            (folder / f"m{number}.py").write_text("")
    assert list(violations(tree)) == ["libs:1: 13 modules in one folder (at most 12)"]
