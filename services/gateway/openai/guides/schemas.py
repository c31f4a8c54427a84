"""JSON schemas from clients: valid, of bounded size, and without a way out of the document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import jsonschema_rs
import msgspec

from services.gateway.openai.bodies import invalid, unsupported
from services.gateway.openai.guides.patterns import MAX_WEIGHT, weight_of
from services.gateway.openai.guides.walk import Node, resolve, walk

__all__ = ["check_schema"]

MOST_BYTES = 131_072
MOST_DEPTH = 32
MOST_PROPERTIES = 1000
MOST_VALUES = 5000
_SHOWN = 200
_LEVELS = 3
"""Values that stand in each other for one level of a schema, at most."""
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
    if _is_deep(schema):
        raise invalid(param, f"the schema is nested deeper than {MOST_DEPTH} levels.")
    plain = {key: value for key, value in schema.items() if key not in _HEADINGS}
    properties = values = weight = 0
    for node in walk(plain):
        if node.depth > MOST_DEPTH:
            raise invalid(param, f"the schema is nested deeper than {MOST_DEPTH} levels.")
        if isinstance(node.schema, dict):
            properties += _length(node.schema.get("properties"))
            values += _length(node.schema.get("enum"))
            weight += sum(map(weight_of, _patterns(node.schema)))
            _check_references(node, node.schema, plain, param)
    if properties > MOST_PROPERTIES:
        raise invalid(param, f"the schema has more than {MOST_PROPERTIES} properties.")
    if values > MOST_VALUES:
        raise invalid(param, f"the schema has more than {MOST_VALUES} values in `enum`.")
    if weight > MAX_WEIGHT:
        raise invalid(param, "the patterns of the schema repeat too much.")
    _check_meta(plain, param)
    _check_cycles(plain, param)


def _patterns(schema: dict[str, Any]) -> Iterator[str]:
    pattern, named = schema.get("pattern"), schema.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(named, dict):
        yield from cast("dict[str, Any]", named)


def _is_deep(schema: dict[str, Any]) -> bool:
    """Return whether anything in a schema is so deep that what follows it could not go there."""
    level: list[Any] = [schema]
    for _ in range(_LEVELS * MOST_DEPTH):
        level = [inner for value in level for inner in _parts(value)]
        if not level:
            return False
    return True


def _parts(value: object) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()


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
        if isinstance(node.schema, dict) and _is_circular(node.schema, root, done):
            raise invalid(param, f"the schema at {_shown(node.path)} refers to itself only.")


def _is_circular(schema: dict[str, Any], root: dict[str, Any], done: set[int]) -> bool:
    """Follow what must match the same value, down and up again."""
    above: set[int] = set()
    path: list[tuple[int, Iterator[dict[str, Any]]]] = []
    step: dict[str, Any] | None = schema
    while step is not None or path:
        if step is not None and id(step) in above:
            return True
        if step is not None and id(step) not in done:
            above.add(id(step))
            path.append((id(step), _alike(step, root)))
        elif not path:
            return False
        step = next(path[-1][1], None)
        if step is None:
            left, _ = path.pop()
            above.discard(left)
            done.add(left)
    return False


def _alike(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schemas that the same value must match, or may."""
    for key in _ALIKE:
        for part in cast("list[Any]", schema.get(key, [])):
            if isinstance(part, dict):
                yield cast("dict[str, Any]", part)
    reference = schema.get("$ref")
    target = resolve(root, reference) if isinstance(reference, str) else None
    if isinstance(target, dict):
        yield target


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
