"""The whole document: operations, types, field tables and errors put together."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from proto.openai.error import ErrorBody
from services.gateway.openai.fields import Field, FieldTable, Stance
from services.gateway.openapi.operations import GENERATING, OPERATIONS, Body, Operation
from services.gateway.openapi.parts import (
    HEADERS,
    PROBES,
    SECURITY,
    Json,
    error_responses,
    reference,
)

__all__ = ["openapi_document"]

_DONE = "[DONE]"
_VERSION = "3.1.0"
_TEMPLATE = "#/components/schemas/{name}"
_ABOUT = (
    'An OpenAI-style API. `null` means "not given" for every field of a request. Fields that are'
    " not listed are refused with 400 `unsupported_parameter`."
)


def openapi_document(version: str) -> Json:
    """Return the document.

    Args:
        version: that of the program.
    """
    names, schemas = _schemas()
    paths: Json = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, names)
    return {
        "openapi": _VERSION,
        "info": {"title": "pdbus", "version": version, "description": _ABOUT},
        "security": [{}, {"bearer": []}],
        "paths": paths | PROBES,
        "components": {
            "schemas": schemas,
            "parameters": HEADERS,
            "securitySchemes": SECURITY,
        },
    }


def _schemas() -> tuple[dict[type, str], Json]:
    """Return the name of each type in the document, and all schemas by name."""
    kinds = list(dict.fromkeys(_kinds()))
    references, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    names = {
        kind: str(found["$ref"]).rpartition("/")[2]
        for kind, found in zip(kinds, references, strict=True)
    }
    for operation in OPERATIONS:
        if operation.body is not None:
            _fill(components[names[operation.body.kind]], operation.body)
    return names, components


def _kinds() -> Iterator[type[msgspec.Struct]]:
    yield ErrorBody
    for operation in OPERATIONS:
        if operation.body is not None:
            yield operation.body.kind
        yield operation.answer
        yield from operation.events


def _fill(schema: Json, body: Body) -> None:
    """Add what the field table knows to the schema of a request."""
    properties: Json = schema["properties"]
    for field in body.table.rows.values():
        if field.stance is Stance.DONE:
            if field.note:
                properties[field.name] = {**properties[field.name], "description": field.note}
        elif field.stance is Stance.NO_EFFECT:
            properties[field.name] = _accepted(field)
    # A Struct's docstring speaks to those who read the code.
    schema["description"] = _stances(body.table)


def _accepted(field: Field) -> Json:
    about = f"Accepted without effect: {field.note}"
    if field.kind is None:
        return {"enum": [*field.values, None], "description": about}
    return {"anyOf": [msgspec.json.schema(field.kind), {"type": "null"}], "description": about}


def _stances(table: FieldTable) -> str:
    refused = sorted(table.names(Stance.REFUSED))
    known = ", ".join(f"`{name}`" for name in refused)
    return f"Refused by name: {known}." if refused else "All other fields are refused."


def _operation(operation: Operation, names: dict[type, str]) -> Json:
    content: Json = {"application/json": {"schema": reference(names[operation.answer])}}
    if operation.events:
        content["text/event-stream"] = {"schema": _stream(operation, names)}
    made: Json = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": list(_parameters(operation)),
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **error_responses(operation.errors),
        },
    }
    if operation.body is not None:
        kind = reference(names[operation.body.kind])
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": kind}}}
    return made


def _parameters(operation: Operation) -> Iterator[Json]:
    if "{model}" in operation.path:
        yield {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    shown = HEADERS if operation.errors == GENERATING else {"RequestId"}
    for name in shown:
        yield {"$ref": f"#/components/parameters/{name}"}


def _stream(operation: Operation, names: dict[type, str]) -> Json:
    """Return the schema of one event of a stream."""
    kinds = [reference(names[kind]) for kind in operation.events]
    data: Json = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [*kinds, reference(names[ErrorBody])]},
    }
    if operation.done:
        data = {"anyOf": [data, {"const": _DONE}]}
    return {
        "type": "object",
        "description": "One of the server-sent events; the last one may be an error.",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": data},
    }
