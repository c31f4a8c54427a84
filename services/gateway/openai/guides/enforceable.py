"""Which JSON schemas the engine's grammar enforces in full.

An answer that only nearly matches its schema is worse than a refusal. Where a schema can be made
narrower so that all of it is enforced, that is done: whatever matches the narrower one matches the
client's. What would be ignored is refused, by the name of its keyword.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from services.gateway.openai.bodies import unsupported
from services.gateway.openai.guides.disjoint import are_disjoint, demand_mark
from services.gateway.openai.guides.narrow import ALONE, ASSERTIONS, narrow
from services.gateway.openai.guides.patterns import fault_of
from services.gateway.openai.guides.walk import walk

__all__ = ["enforceable"]

_IGNORED = frozenset(
    {
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
        *("multipleOf", "unevaluatedProperties", "additionalItems"),
    }
)
_LENGTHS = frozenset({"minLength", "maxLength"})
_EXTRA = frozenset({"additionalProperties", "items"})
"""Where `false` means that there is nothing more."""


def enforceable(schema: dict[str, Any], *, param: str) -> dict[str, Any]:
    """Return a schema that the grammar enforces, and whose matches all match `schema`.

    Args:
        schema: a valid one.
        param: the field that the schema comes from.

    Raises:
        PdbusError: unsupported_parameter, as there is none.
    """
    made = deepcopy(schema)
    for node in walk(made):
        if node.schema is False and node.keyword not in _EXTRA:
            raise unsupported(param, f"the schema at {node.path[:200]} matches nothing.")
        if isinstance(node.schema, dict):
            narrow(node.schema)
            fault = _fault(node.schema, made)
            if fault is not None:
                raise unsupported(param, f"the schema at {node.path[:200]}: {fault}.")
    return made


def _fault(schema: dict[str, Any], root: dict[str, Any]) -> str | None:
    for rule in _RULES:
        fault = rule(schema)
        if fault is not None:
            return fault
    if "oneOf" not in schema:
        return None
    demand_mark(schema, root)
    if not are_disjoint(schema["oneOf"], root):
        return "'oneOf' whose schemas may match the same value is not supported; use 'anyOf'"
    return None


def _no_ignored(schema: dict[str, Any]) -> str | None:
    found = sorted(_IGNORED & schema.keys())
    return f"'{found[0]}' is not supported" if found else None


def _alone(schema: dict[str, Any]) -> str | None:
    """Of these keywords one alone counts."""
    found = [key for key in ALONE if key in schema]
    if not found:
        return None
    others = sorted((ASSERTIONS & schema.keys()) - {found[0]})
    if others:
        return f"'{others[0]}' beside '{found[0]}' is not supported"
    if found[0] == "allOf" and len(schema["allOf"]) > 1:
        return "'allOf' with several schemas is not supported"
    return "no value is left" if schema.get("enum") == [] else None


def _strings(schema: dict[str, Any]) -> str | None:
    pattern = schema.get("pattern")
    if pattern is not None and not schema.keys().isdisjoint(_LENGTHS):
        return "a pattern beside lengths is not supported"
    fault = fault_of(pattern) if isinstance(pattern, str) else None
    return f"the pattern cannot be used: {fault}" if fault else None


def _objects(schema: dict[str, Any]) -> str | None:
    known = schema.get("properties", {})
    missing = next((name for name in schema.get("required", ()) if name not in known), None)
    if missing is not None:
        return f"'{str(missing)[:64]}' is required and not among the properties"
    for pattern in schema.get("patternProperties", {}):
        fault = fault_of(pattern)
        if fault:
            return f"a pattern of 'patternProperties' cannot be used: {fault}"
    return None


_RULES: tuple[Callable[[dict[str, Any]], str | None], ...] = (
    *(_no_ignored, _alone, _strings, _objects),
)
