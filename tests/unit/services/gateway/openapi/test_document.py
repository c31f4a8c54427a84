"""The OpenAPI document says what the gateway does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from libs.clock.system import SystemClock
from proto.errors import ERRORS, ErrorCode
from services.gateway.openai import Texts
from services.gateway.openai.fields import Stance
from services.gateway.openapi import openapi_document
from services.gateway.openapi.operations import OPERATIONS
from services.gateway.routes import Identity, http_app
from tests.unit.services.gateway.rig import MODEL, Rig, rules

DOCUMENT = json.loads(json.dumps(openapi_document("1")))


def references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from references(item)
    elif isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)


def validator(name: str) -> Any:
    """Return the validator of a component."""
    components = {"schemas": DOCUMENT["components"]["schemas"]}
    schema = {"$ref": f"#/components/schemas/{name}", "components": components}
    return jsonschema_rs.Draft202012Validator(schema)


def test_every_path_is_described(rig: Rig):
    """What the gateway serves and what the document lists are the same paths and methods."""
    app: Any = http_app(
        calls=rig.calls,
        fleet=rig.fleet,
        texts=Texts({MODEL: rig.text}, rig.fleet),
        clock=SystemClock(),
        rules=rules(),
        identity=Identity("gateway-1", "1"),
    )
    while not isinstance(app, Starlette):
        app = app._app
    served = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == served


def test_all_references_lead_somewhere():
    """Nothing in the document points at a part that is not there."""
    for target in set(references(DOCUMENT)):
        node: Any = DOCUMENT
        for part in target.removeprefix("#/").split("/"):
            node = node[part]


@pytest.mark.parametrize("name", sorted(DOCUMENT["components"]["schemas"]))
def test_each_schema_is_one(name: str):
    """Every component is a schema by the rules of JSON Schema."""
    jsonschema_rs.meta.validate(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **DOCUMENT["components"]["schemas"][name],
        }
    )


async def test_it_is_served(rig: Rig):
    """The gateway gives the document to whoever asks."""
    reply = await rig.get("/openapi.json")
    assert reply.status == 200
    assert reply.json == {**DOCUMENT, "info": DOCUMENT["info"] | {"version": "1.2.3"}}


def test_each_error_is_somewhere():
    """Every error that a client can get over HTTP stands under the status that it has."""
    found = {code for operation in OPERATIONS for code in operation.errors}
    paths = DOCUMENT["paths"]
    for code in found:
        row = ERRORS[code]
        operations = [o for o in OPERATIONS if code in o.errors]
        for operation in operations:
            answers = paths[operation.path][operation.method]["responses"]
            assert f"`{code}`" in answers[str(row.http)]["description"]
    kept = {ErrorCode.NOT_FOUND, ErrorCode.METHOD_NOT_ALLOWED, ErrorCode.HEADERS_TOO_LARGE}
    kept |= {ErrorCode.CANCELLED, ErrorCode.SLOW_CLIENT, ErrorCode.UNKNOWN_REQUEST}
    assert set(ErrorCode) - found == kept


def test_fields_have_the_stances_of_their_tables():
    """A request lists what is carried out or accepted, and neither what is refused nor internal."""
    for operation in OPERATIONS:
        if operation.body is None:
            continue
        table = operation.body.table
        schema = DOCUMENT["components"]["schemas"][operation.body.kind.__name__]
        listed = table.names(Stance.DONE) | table.names(Stance.NO_EFFECT)
        assert set(schema["properties"]) == listed
        assert schema["additionalProperties"] is False


async def test_answers_fit_their_own_schemas(rig: Rig):
    """What is answered is what the document says, errors included."""
    post = {"content-type": "application/json"}
    chat = await rig.ask()
    validator("ChatCompletion").validate(chat.json)
    for chunk in (await rig.ask(stream=True)).events[:-1]:
        validator("ChatChunk").validate(chunk)
    body = json.dumps({"model": MODEL, "input": "Hi"}).encode()
    answer = await rig.visit("POST", "/v1/responses", body, post).run()
    validator("ResponseBody").validate(answer.json)
    validator("ModelList").validate((await rig.get("/v1/models")).json)
    validator("ModelInfo").validate((await rig.get(f"/v1/models/{MODEL}")).json)
    validator("ErrorBody").validate((await rig.ask(b"{")).json)
    assert not validator("ErrorBody").is_valid({"error": "x"})
