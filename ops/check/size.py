"""The size guard: rooms stay small enough to be read.

Limits: 400 lines a module (800 in tests), 50 lines a function without its docstring, 12 modules a
folder. `python -m ops.check.size` prints what is over and fails.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["main", "violations"]

ROOTS = ("proto", "libs", "services", "ops", "tests")
MODULE_LINES = 400
TEST_LINES = 800
FUNCTION_LINES = 50
FOLDER_MODULES = 12

FLAT = frozenset({"proto"})
"""Folders that are flat on purpose: one file a receiver is the face of `proto`."""


def violations(root: Path) -> Iterator[str]:
    """Go through what is over a limit below `root`, as `path:line: text`."""
    for name in ROOTS:
        top = root / name
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir())):
            yield from _folder(root, folder)
        for path in sorted(top.rglob("*.py")):
            yield from _module(root, path)


def main() -> int:
    """Print all violations of the tree in the working directory; return the exit code."""
    found = list(violations(Path.cwd()))
    for line in found:
        print(line)
    print(f"size: {len(found)} over a limit")
    return 1 if found else 0


def _folder(root: Path, folder: Path) -> Iterator[str]:
    place = folder.relative_to(root)
    modules = [path for path in folder.glob("*.py") if not path.name.startswith("__")]
    if len(modules) > FOLDER_MODULES and place.as_posix() not in FLAT:
        yield f"{place}:1: {len(modules)} modules in one folder (at most {FOLDER_MODULES})"


def _module(root: Path, path: Path) -> Iterator[str]:
    place = path.relative_to(root)
    text = path.read_text(encoding="utf-8")
    limit = TEST_LINES if place.parts[0] == "tests" else MODULE_LINES
    lines = text.count("\n")
    if lines > limit:
        yield f"{place}:1: {lines} lines (at most {limit})"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _length(node)
            if length > FUNCTION_LINES:
                text = f"{node.name}: {length} lines (at most {FUNCTION_LINES})"
                yield f"{place}:{node.lineno}: {text}"


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    text = ast.get_docstring(node, clean=False) is not None
    doc = (first.end_lineno or first.lineno) - first.lineno + 1 if text else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - doc


if __name__ == "__main__":
    sys.exit(main())
