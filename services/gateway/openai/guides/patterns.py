"""Regular expressions: valid, and of the kind that a grammar can be made of."""

from __future__ import annotations

import re

import jsonschema_rs

__all__ = ["MAX_PATTERN_CHARS", "MAX_WEIGHT", "fault_of", "weight_of"]

MAX_PATTERN_CHARS = 8192
MAX_WEIGHT = 20_000
"""Places of all patterns of a request together: compiling more takes longer than streams wait."""

_UNIT = re.compile(
    r"\\(?P<escape>[\s\S])|(?P<class>\[\^?\]?(?:\\[\s\S]|[^\]\\])*\])|(?P<group>\(\?(?:<[=!]|[^)]?))"
)
_PLAIN = re.compile(r"\\[\s\S]|\[\^?\]?(?:\\[\s\S]|[^\]\\])*\]")
"""What no parenthesis in it opens or closes: escapes and classes."""
_PLACES = re.compile(r"\{(?P<least>\d{1,9})(?:,(?P<most>\d{0,9}))?\}|[\s\S]")
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
    if weight_of(pattern) > MAX_WEIGHT:
        return "it repeats too much"
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


def weight_of(pattern: str) -> int:
    """Return how many places a pattern has once all its counted repeats are written out."""
    sums, last = [0], 0
    for unit in _PLACES.finditer(_PLAIN.sub("x", pattern)):
        if unit["least"] is not None:
            most = int(unit["most"] or unit["least"])
            sums[-1] += last * max(0, most - 1)
            last *= most
        elif unit[0] == "(":
            sums.append(0)
        elif unit[0] == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        else:
            last = 1
            sums[-1] += 1
    return sum(sums)


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
