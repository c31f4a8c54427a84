"""Which parsers SGLang has, read from its source: to import it takes seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["ParserNames", "check_names", "known_names"]

_TOOLS = "srt/function_call/function_call_parser.py"
_REASONING = "srt/parser/reasoning_parser.py"


@dataclass(frozen=True, slots=True)
class ParserNames:
    """The parsers by name."""

    tools: dict[str, tuple[str, str]]
    """Module and class of each."""
    reasoning: tuple[str, ...]


@cache
def known_names() -> ParserNames:
    """Return the names that the installed SGLang knows.

    Raises:
        ValueError: there is no SGLang, or it is not the version that this program was made for.
    """
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("parsers of answers need the package sglang")
    root = Path(next(iter(spec.submodule_search_locations)))
    tools, reasoning = _tree(root / _TOOLS), _tree(root / _REASONING)
    homes = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tools)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    found = {name: homes[owner] for name, owner in _entries(tools, "ToolCallParserEnum")}
    return ParserNames(found, tuple(name for name, _ in _entries(reasoning, "DetectorMap")))


def check_names(tool_parser: str, reasoning_parser: str) -> None:
    """Check the names of parsers; empty ones mean none.

    Raises:
        ValueError: SGLang has no parser of that name; the text lists those it has.
    """
    if not tool_parser and not reasoning_parser:
        return
    known = known_names()
    _check("tool", tool_parser, known.tools)
    _check("reasoning", reasoning_parser, known.reasoning)


def _check(kind: str, name: str, known: dict[str, tuple[str, str]] | tuple[str, ...]) -> None:
    if name and name not in known:
        text = f"there is no {kind} parser {name!r}; there are {', '.join(sorted(known))}"
        raise ValueError(text)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _entries(tree: ast.Module, table: str) -> Iterator[tuple[str, str]]:
    """Go through keys and names of values of a table that a class body defines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        if not isinstance(node.target, ast.Name) or node.target.id != table:
            continue
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                yield str(key.value), value.id
