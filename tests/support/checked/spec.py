"""The schemas of OpenAI's stored API description, as validators.

Reading the description takes most of a second, so the schemas that answers need are kept in
pytest's cache folder, under the digest of the file that they come from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

from tests.support.reference import TRACES

__all__ = ["EVENTS", "SPEC", "TEXT_CHUNK", "available", "event_schema", "validator"]

SPEC = TRACES / "openai_openapi.yaml"
TEXT_CHUNK = "CompletionChunk"
EVENTS = "ResponseStreamEvent"
"""The schema of all events that `/v1/responses` streams."""

_NEEDED = (
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "ErrorResponse",
    "ListModelsResponse",
    "Model",
    "Response",
    EVENTS,
)
_KEPT = Path(__file__).resolve().parents[3] / ".pytest_cache"
_FORM = "3"
"""Changes with what is made of the description."""


def available() -> bool:
    """Return whether the description stands beside the checkout."""
    return SPEC.is_file()


@cache
def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    """Return the validator of a component schema."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": _schemas()}}
    return jsonschema_rs.Draft202012Validator(schema)


@cache
def event_schema(kind: str) -> str | None:
    """Return the name of the schema of a `/v1/responses` event by its `type`; None if unknown."""
    event = _schemas()[EVENTS]
    for option in event.get("anyOf") or event["oneOf"]:
        name = option["$ref"].rpartition("/")[2]
        if kind in _schemas()[name]["properties"]["type"]["enum"]:
            return name
    return None


@cache
def _schemas() -> dict[str, Any]:
    data = SPEC.read_bytes()
    kept = _KEPT / f"openai-{hashlib.sha256(data).hexdigest()[:16]}-{_FORM}.json"
    if kept.is_file():
        return json.loads(kept.read_bytes())
    # The fast form of `yaml.safe_load`: plain values only.
    every = yaml.CSafeLoader(data).get_single_data()["components"]["schemas"]
    found: dict[str, Any] = {}
    waiting = list(_NEEDED)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _plain(every[name])
            waiting += _references(found[name])
    found[TEXT_CHUNK] = _text_chunk(found["CreateCompletionResponse"])
    kept.parent.mkdir(exist_ok=True)
    # Several workers may do this at once.
    part = kept.with_suffix(f".{id(found)}.part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(kept)
    return found


def _text_chunk(whole: Any) -> Any:
    """Return the schema of a chunk of `/v1/completions`, for which OpenAI writes none.

    It is that of a whole answer, but only the last chunk of a choice tells why it ended.
    """
    made = json.loads(json.dumps(whole))
    choice = made["properties"]["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}
    made["properties"]["usage"] = {"anyOf": [made["properties"]["usage"], {"type": "null"}]}
    return made


def _plain(node: Any) -> Any:
    """Translate OpenAPI's `nullable`, and leave out what is no schema."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node if isinstance(node, str | int | float | bool | None) else str(node)
    inner = {
        key: _plain(value)
        for key, value in node.items()
        if key not in {"example", "examples", "x-oaiMeta"} or isinstance(value, dict)
    }
    # Where fields have names of their own, `nullable` would be one of them.
    if inner.get("nullable") in (True, False):
        return {"anyOf": [inner, {"type": "null"}]} if inner.pop("nullable") else inner
    return inner


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
    elif isinstance(node, dict):
        target = node.get("$ref")
        if isinstance(target, str):
            yield target.rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
