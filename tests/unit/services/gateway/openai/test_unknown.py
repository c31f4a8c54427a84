"""Fields that nobody knows: refused, or left out and counted, as the operator says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.gateway.api import UnknownFields
from tests.unit.services.gateway.rig import CHAT, MODEL, Rig, rules

PART = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
ODD: list[dict[str, Any]] = [
    {"no_such_field": 1},
    {"a.b": 1, "c[0]": 2, "": 3},
    {"messages": [{"role": "user", "content": "Hi", "weight": 1}]},
    {"messages": [{"role": "user", "content": [PART, PART]}]},
    {"stream": True, "stream_options": {"continuous_usage_stats": True}},
]


@pytest.mark.parametrize("fields", ODD)
async def test_they_are_refused_by_default(rig: Rig, fields: dict[str, Any]):
    """Without the switch a request with an unknown field is a 400."""
    reply = await rig.ask(**fields)
    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")


@pytest.mark.parametrize("fields", ODD)
async def test_they_can_be_left_out(rig: Rig, fields: dict[str, Any], metric):
    """With the switch the request is carried out without them, wherever they are."""
    rig.rules = rules(unknown_fields=UnknownFields.IGNORE)
    before = metric("pdbus.gateway.ignored_fields", endpoint=CHAT)
    assert (await rig.ask(**fields)).status == 200
    assert metric("pdbus.gateway.ignored_fields", endpoint=CHAT) > before


async def test_what_is_left_out_changes_nothing(rig: Rig):
    """The request is the same one with and without."""
    rig.rules = rules(unknown_fields=UnknownFields.IGNORE)
    await rig.ask(temperature=0.5, nonsense={"deep": [1]})
    await rig.ask(temperature=0.5)
    first, second = rig.calls.opened
    assert first.digest == second.digest
    assert first.sampling == second.sampling


@pytest.mark.parametrize("fields", [{"rid": "x"}, {"functions": []}, {"store": True}])
async def test_what_is_known_and_refused_still_is(rig: Rig, fields: dict[str, Any]):
    """The switch is about unknown fields alone: internal and refused ones are no less so."""
    rig.rules = rules(unknown_fields=UnknownFields.IGNORE)
    assert (await rig.ask(**fields)).status == 400


async def test_there_is_an_end_to_it(rig: Rig):
    """A body of hundreds of unknown fields is refused all the same."""
    rig.rules = rules(unknown_fields=UnknownFields.IGNORE)
    reply = await rig.ask(**{f"x{number}": 1 for number in range(300)})
    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")


async def test_all_endpoints_do_so(rig: Rig):
    """The switch holds for every endpoint that takes a body."""
    rig.rules = rules(unknown_fields=UnknownFields.IGNORE)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "a"},
        "/v1/responses": {"input": "a"},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [5]},
    }
    for path, fields in bodies.items():
        body = json.dumps({"model": MODEL, "nonsense": 1} | fields).encode()
        visit = rig.visit("POST", path, body, {"content-type": "application/json"})
        assert (await visit.run()).status == 200
