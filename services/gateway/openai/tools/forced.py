"""The schema of an answer that is nothing but tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from services.gateway.openai.guides.walk import walk

__all__ = ["calls_schema"]

_HEADINGS = ("$schema", "$id")


def calls_schema(
    functions: Sequence[tuple[str, dict[str, Any]]], *, most: int | None
) -> dict[str, Any]:
    """Return the schema of a JSON array of `{"name": ..., "parameters": ...}`.

    Args:
        functions: name and parameters of each function that may be called.
        most: calls in one answer; None for any number.
    """
    calls = [_call(name, index) for index, (name, _) in enumerate(functions)]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": calls[0] if len(calls) == 1 else {"anyOf": calls},
        "$defs": {_key(i): _moved(schema, i) for i, (_, schema) in enumerate(functions)},
    }
    return schema if most is None else {**schema, "maxItems": most}


def _key(index: int) -> str:
    return f"parameters{index}"


def _call(name: str, index: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"enum": [name]},
            "parameters": {"$ref": f"#/$defs/{_key(index)}"},
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a schema whose references hold in its new place."""
    made = {key: value for key, value in deepcopy(schema).items() if key not in _HEADINGS}
    made.setdefault("type", "object")
    for node in walk(made):
        if isinstance(node.schema, dict) and isinstance(node.schema.get("$ref"), str):
            rest = node.schema["$ref"].removeprefix("#")
            node.schema["$ref"] = f"#/$defs/{_key(index)}{rest}"
    return made
