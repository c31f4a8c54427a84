"""Regular expressions: valid, and of the kind that a grammar can be made of."""

from __future__ import annotations

import re

import jsonschema_rs

__all__ = ["MAX_PATTERN_CHARS", "fault_of"]

MAX_PATTERN_CHARS = 8192

_UNIT = re.compile(
    r"\\(?P<escape>[\s\S])|(?P<class>\[\^?\]?(?:\\[\s\S]|[^\]\\])*\])|(?P<group>\(\?(?:<[=!]|[^)]?))"
)
_PLAIN = re.compile(r"\\[\s\S]|\[\^?\]?(?:\\[\s\S]|[^\]\\])*\]")
"""What no parenthesis in it opens or closes: escapes and classes."""
_TWICE = re.compile(r"[*+?}][*+]|[*+?}]\?[*+?]|\^[*+?{]")
_GROUPS = frozenset({"(?:", "(?<", "(?P"})
_ESCAPES = {
    "b": "word boundaries are not supported",
    "B": "word boundaries are not supported",
    "k": "backreferences are not supported",
    "p": "Unicode classes are not supported",
    "P": "Unicode classes are not supported",
}


def fault_of(pattern: str) -> str | None:
    """Return what is wrong with a pattern (ECMA-262), or None."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"it is longer than {MAX_PATTERN_CHARS} characters"
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern})
    except jsonschema_rs.ValidationError:
        return "it is not valid, or too large"
    plain = _PLAIN.sub("x", pattern)
    if not _is_balanced(plain):
        return "its groups are not closed"
    if "^" in plain[1:] or "$" in plain[:-1]:
        return "anchors are only supported at its ends"
    if _TWICE.search(plain):
        return "nothing can be repeated twice in a row"
    return next(filter(None, map(_beyond, _UNIT.finditer(pattern))), None)


def _is_balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return False
    return depth == 0


def _beyond(unit: re.Match[str]) -> str | None:
    """Return why a part of a pattern cannot become a grammar, or None."""
    escape, group = unit["escape"], unit["group"]
    if unit["class"] is not None and unit["class"].startswith(("[]", "[^]")):
        return "an empty class matches nothing"
    if escape is not None:
        if escape.isdigit() and escape != "0":
            return "backreferences are not supported"
        return _ESCAPES.get(escape)
    if group is not None and (group in {"(?<=", "(?<!"} or group[:3] not in _GROUPS):
        return "look-around and flags are not supported"
    return None
