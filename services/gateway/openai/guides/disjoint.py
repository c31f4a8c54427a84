"""Whether no value can match two of several schemas."""

from __future__ import annotations

from itertools import combinations
from typing import Any, cast

import msgspec

from services.gateway.openai.guides.walk import resolve

__all__ = ["are_disjoint", "demand_mark"]

_MOST = 64
_STEPS = 16
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})


def are_disjoint(schemas: list[Any], root: dict[str, Any]) -> bool:
    """Return whether that is plain to see: by types, by values, or by a property that tells."""
    if len(schemas) > _MOST:
        return False
    plain = [_plain(schema, root) for schema in schemas]
    return all(_differ(one, other, root) for one, other in combinations(plain, 2))


def demand_mark(schema: dict[str, Any], root: dict[str, Any]) -> None:
    """Make the property required that a `discriminator` names: without it nothing tells."""
    given = schema.get("discriminator")
    name = cast("dict[str, Any]", given).get("propertyName") if isinstance(given, dict) else None
    for part in schema["oneOf"]:
        found = _plain(part, root)
        required: list[Any] = found.get("required", [])
        if isinstance(name, str) and name in found.get("properties", {}) and name not in required:
            found["required"] = [*required, name]


def _plain(schema: object, root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference followed."""
    for _ in range(_STEPS):
        if not isinstance(schema, dict):
            return {}
        found = cast("dict[str, Any]", schema)
        if "$ref" not in found:
            return found
        schema = resolve(root, found["$ref"])
    return {}


def _differ(one: dict[str, Any], other: dict[str, Any], root: dict[str, Any]) -> bool:
    first, second = _values(one), _values(other)
    if first is not None and second is not None:
        return first.isdisjoint(second)
    types = _types(one), _types(other)
    if types[0].isdisjoint(types[1]):
        return True
    return types == ({"object"}, {"object"}) and any(
        _tells(name, one, other, root) for name in one.get("required", ())
    )


def _tells(name: str, one: dict[str, Any], other: dict[str, Any], root: dict[str, Any]) -> bool:
    """Return whether a property that both must have has no value in common."""
    if name not in other.get("required", ()):
        return False
    found = [_values(_plain(part.get("properties", {}).get(name), root)) for part in (one, other)]
    return None not in found and cast("set[bytes]", found[0]).isdisjoint(found[1] or ())


def _values(schema: dict[str, Any]) -> set[bytes] | None:
    """Return all values of a schema that lists them, as JSON."""
    if "const" in schema:
        return {msgspec.json.encode(schema["const"])}
    values = cast("list[Any] | None", schema.get("enum"))
    return None if values is None else {msgspec.json.encode(value) for value in values}


def _types(schema: dict[str, Any]) -> set[str]:
    if "enum" in schema or "const" in schema:
        return {_type_of(msgspec.json.decode(value)) for value in _values(schema) or ()}
    given = schema.get("type", list(_TYPES))
    names = [given] if isinstance(given, str) else cast("list[str]", given)
    return {"number" if name == "integer" else name for name in names}


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
