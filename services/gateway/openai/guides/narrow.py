"""Makes one schema narrower, so that its grammar enforces all of it."""

from __future__ import annotations

from typing import Any, cast

import jsonschema_rs

__all__ = ["ALONE", "ASSERTIONS", "narrow"]

_FORMATS = frozenset(
    {
        *("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer"),
        *("relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid"),
    }
)
"""Formats that the grammar enforces."""
_MAY_BE_EMPTY = frozenset({"json-pointer", "uri-reference", "uri-template"})

_OBJECT = (
    *("properties", "required", "additionalProperties", "patternProperties"),
    *("minProperties", "maxProperties", "propertyNames"),
)
_ARRAY = ("items", "prefixItems", "minItems", "maxItems")
_STRING = ("minLength", "maxLength", "pattern", "format")
_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_TYPES = (("object", _OBJECT), ("array", _ARRAY), ("string", _STRING), ("number", _NUMBER))
_SIMPLE = frozenset({*_STRING, *_NUMBER, "type"})
"""What can be judged of a single value without the document around it."""

ALONE = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
"""Keywords beside which the grammar ignores all others."""
ASSERTIONS = frozenset({*_OBJECT, *_ARRAY, *_STRING, *_NUMBER, *ALONE, "type"})


def narrow(schema: dict[str, Any]) -> None:
    """Change a schema in place; what matches it afterwards matched it before."""
    if "enum" in schema or "const" in schema:
        _judge_values(schema)
        return
    if not schema.keys().isdisjoint(("anyOf", "oneOf")):
        _push_type_down(schema)
        return
    if schema.keys().isdisjoint(ALONE):
        _leave_format(schema)
        _choose_type(schema)
        _open_up(schema)
        _name_required(schema)


def _leave_format(schema: dict[str, Any]) -> None:
    """Leave out a format that only annotates: one that is not known, or beside what asserts."""
    given = schema.get("format")
    if (
        given in _FORMATS - _MAY_BE_EMPTY
        and schema.get("minLength", 0) <= 1
        and "maxLength" not in schema
    ):
        # What has such a format is not empty.
        schema.pop("minLength", None)
    if given not in _FORMATS or not schema.keys().isdisjoint(("pattern", "minLength", "maxLength")):
        schema.pop("format", None)


def _judge_values(schema: dict[str, Any]) -> None:
    """Keep of the values those that match what stands beside them."""
    key = "enum" if "enum" in schema else "const"
    others = (ASSERTIONS & schema.keys()) - {key}
    if not others or not others <= _SIMPLE:
        return
    beside = {name: schema.pop(name) for name in sorted(others)}
    values: list[Any] = schema.pop(key) if key == "enum" else [schema.pop(key)]
    schema["enum"] = [value for value in values if jsonschema_rs.is_valid(beside, value)]


def _push_type_down(schema: dict[str, Any]) -> None:
    """Move a type into each of the alternatives beside it, where these have none."""
    key = "anyOf" if "anyOf" in schema else "oneOf"
    if set(ASSERTIONS & schema.keys()) != {key, "type"}:
        return
    kind = schema["type"]
    parts = cast("list[dict[str, Any] | bool]", schema[key])
    if all(not isinstance(part, bool) and _may_have(part, kind) for part in parts):
        del schema["type"]
        schema[key] = [{"type": kind, **part} for part in parts if not isinstance(part, bool)]


def _may_have(part: dict[str, Any], kind: object) -> bool:
    return part.get("type", kind) == kind and part.keys().isdisjoint(ALONE)


def _choose_type(schema: dict[str, Any]) -> None:
    """Give a schema without a type the one that its keywords are about."""
    if "type" in schema:
        return
    for kind, keywords in _TYPES:
        if not schema.keys().isdisjoint(keywords):
            schema["type"] = kind
            return


def _open_up(schema: dict[str, Any]) -> None:
    """Say what is left open: the grammar takes silence for `false`, and least numbers need more."""
    if "minItems" in schema:
        schema.setdefault("items", {})
    if "patternProperties" in schema:
        schema["additionalProperties"] = False
    elif "minProperties" in schema:
        schema.setdefault("additionalProperties", True)


def _name_required(schema: dict[str, Any]) -> None:
    """Make properties of the names that are required only."""
    rest: object = schema.get("additionalProperties", True)
    if rest is False or "patternProperties" in schema:
        return
    known = cast("dict[str, Any]", schema.get("properties", {}))
    empty: object = {} if rest is True else rest
    missing = [name for name in schema.get("required", ()) if name not in known]
    if missing:
        schema["properties"] = {**known, **dict.fromkeys(missing, empty)}
