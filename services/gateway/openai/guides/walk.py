"""Goes through all schemas within a JSON schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["Node", "resolve", "walk"]

_ONE = (
    *("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if"),
    *("items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
)
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = (
    *("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"),
    "dependencies",
)


@dataclass(frozen=True, slots=True)
class Node:
    """One schema within another."""

    schema: dict[str, Any] | bool
    path: str
    """JSON pointer, from `#`."""
    depth: int
    """0 for the whole."""
    keyword: str
    """What it stands under."""


def walk(schema: dict[str, Any]) -> Iterator[Node]:
    """Yield the whole and all schemas within, outer ones first; values are no schemas."""
    waiting = [Node(schema, "#", 0, "")]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node.schema, dict):
            waiting.extend(_inner(node, node.schema))


def _inner(node: Node, schema: dict[str, Any]) -> Iterator[Node]:
    for keyword, value in schema.items():
        path = f"{node.path}/{keyword}"
        if keyword in _ONE:
            found = {"": value}
        elif keyword in _MANY and isinstance(value, list):
            found = {f"/{n}": v for n, v in enumerate(cast("list[Any]", value))}
        elif keyword in _NAMED and isinstance(value, dict):
            found = {f"/{n}": v for n, v in cast("dict[str, Any]", value).items()}
        else:
            continue
        for rest, inner in found.items():
            if isinstance(inner, (dict, bool)):
                kept = cast("dict[str, Any] | bool", inner)
                yield Node(kept, path + rest, node.depth + 1, keyword)


def resolve(root: dict[str, Any], reference: str) -> dict[str, Any] | bool | None:
    """Return the schema that a reference such as `#/$defs/item` names, or None."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    found: object = root
    for step in reference[2:].split("/"):
        if not step or not isinstance(found, dict):
            return None
        found = cast("dict[str, object]", found).get(step.replace("~1", "/").replace("~0", "~"))
    return cast("dict[str, Any] | bool", found) if isinstance(found, (dict, bool)) else None
