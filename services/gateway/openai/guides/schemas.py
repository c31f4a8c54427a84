"""JSON schemas from clients: valid, of bounded size, and without a way out of the document."""

from __future__ import annotations

from typing import Any, cast

import jsonschema_rs
import msgspec

from services.gateway.openai.bodies import invalid, unsupported
from services.gateway.openai.guides.walk import Node, resolve, walk

__all__ = ["check_schema"]

MOST_BYTES = 131_072
MOST_DEPTH = 32
MOST_PROPERTIES = 1000
MOST_VALUES = 5000
_SHOWN = 200
_ELSEWHERE = ("$id", "$schema", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef")
"""What could make a reference mean something outside of the document, or nothing at all."""
_ALIKE = ("allOf", "anyOf", "oneOf")
"""Where the schemas within are about the same value."""
_HEADINGS = ("$schema", "$id")


def check_schema(schema: dict[str, Any], *, param: str) -> None:
    """Refuse what is no JSON schema (2020-12), is too large, or refers to something elsewhere.

    Raises:
        PdbusError: `param` is the field that the schema comes from.
    """
    if len(msgspec.json.encode(schema)) > MOST_BYTES:
        raise invalid(param, f"the schema has more than {MOST_BYTES} bytes.")
    plain = {key: value for key, value in schema.items() if key not in _HEADINGS}
    properties = values = 0
    for node in walk(plain):
        if node.depth > MOST_DEPTH:
            raise invalid(param, f"the schema is nested deeper than {MOST_DEPTH} levels.")
        if isinstance(node.schema, dict):
            properties += _length(node.schema.get("properties"))
            values += _length(node.schema.get("enum"))
            _check_references(node, node.schema, plain, param)
    if properties > MOST_PROPERTIES:
        raise invalid(param, f"the schema has more than {MOST_PROPERTIES} properties.")
    if values > MOST_VALUES:
        raise invalid(param, f"the schema has more than {MOST_VALUES} values in `enum`.")
    _check_meta(plain, param)
    _check_cycles(plain, param)


def _length(value: object) -> int:
    return len(value) if isinstance(value, (dict, list)) else 0  # pyright: ignore[reportUnknownArgumentType]


def _check_references(node: Node, schema: dict[str, Any], root: dict[str, Any], param: str) -> None:
    for keyword in _ELSEWHERE:
        if keyword in schema:
            raise unsupported(param, f"'{keyword}' is not supported at {_shown(node.path)}.")
    reference = schema.get("$ref")
    if reference is None:
        return
    if not isinstance(reference, str) or resolve(root, reference) is None:
        raise invalid(
            param,
            f"`$ref` at {_shown(node.path)} does not name a schema of the same document.",
        )


def _check_meta(schema: dict[str, Any], param: str) -> None:
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        where = "/".join(["#", *map(str, error.instance_path)])
        text = f"the schema is not valid at {_shown(where)}: {_shown(error.message)}."
        raise invalid(param, text) from error


def _check_cycles(root: dict[str, Any], param: str) -> None:
    """Refuse a schema that is only itself again: nothing could match it."""
    done: set[int] = set()
    for node in walk(root):
        if _is_circular(node.schema, root, done=done, above=set()):
            raise invalid(param, f"the schema at {_shown(node.path)} refers to itself only.")


def _is_circular(schema: object, root: dict[str, Any], *, done: set[int], above: set[int]) -> bool:
    """Follow what must match the same value; its depth is bounded by that of the document."""
    if not isinstance(schema, dict) or id(schema) in done:  # pyright: ignore[reportUnknownArgumentType]
        return False
    found = cast("dict[str, Any]", schema)
    if id(found) in above:
        return True
    inner: list[Any] = [part for key in _ALIKE for part in found.get(key, ())]
    reference = found.get("$ref")
    target = resolve(root, reference) if isinstance(reference, str) else None
    if target is not None:
        inner.append(target)
    above.add(id(found))
    circular = any(_is_circular(part, root, done=done, above=above) for part in inner)
    above.discard(id(found))
    done.add(id(found))
    return circular


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
