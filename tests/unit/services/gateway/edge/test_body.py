"""Request bodies: JSON only, bounded in size, depth and time, before anything is opened."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.edge.body import MOST_DEPTH, depth_of
from tests.unit.services.gateway.rig import CHAT, Rig, chat_body, rules

BODY = json.dumps(chat_body()).encode()


@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON; charset=utf-8", 'application/json;charset="UTF-8"'],
)
async def test_json_is_read(rig: Rig, kind: str):
    """JSON in UTF-8 is taken, however the type is spelled."""
    reply = await rig.post(BODY, {"content-type": kind}).run()
    assert reply.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
async def test_anything_else_is_a_415(rig: Rig, headers: dict[str, str]):
    """Other types, other charsets and compressed bodies are refused by their headers."""
    reply = await rig.visit("POST", CHAT, BODY, headers).run()
    assert (reply.status, reply.error["code"]) == (415, "unsupported_media_type")
    assert rig.calls.opened == []


@pytest.mark.parametrize("announced", [True, False])
async def test_a_large_body_is_a_413(rig: Rig, announced: bool):
    """A body over the limit is refused, by its announced length or while it comes."""
    rig.rules = rules(max_body_bytes=1000)
    headers = {"content-length": "1001"} if announced else {}
    body = BODY if announced else b"x" * 1001
    reply = await rig.post(body, headers).run()
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")
    assert "1000 bytes" in reply.error["message"]


async def test_a_body_of_the_limit_is_read(rig: Rig):
    """The limit itself is allowed."""
    rig.rules = rules(max_body_bytes=len(BODY))
    assert (await rig.post(BODY).run()).status == 200


async def test_a_body_comes_in_pieces(rig: Rig):
    """Pieces are put together."""
    visit = rig.post(b"")
    visit._messages = asyncio.Queue()
    for piece in (BODY[:10], BODY[10:]):
        message = {"type": "http.request", "body": piece, "more_body": piece != BODY[10:]}
        visit._messages.put_nowait(message)
    assert (await visit.run()).status == 200


async def test_a_body_that_never_ends_is_a_408(rig: Rig):
    """A client that stalls within its body is told so."""
    rig.rules = rules(body_timeout_s=0.02)
    visit = rig.post(BODY)
    visit._messages = asyncio.Queue()
    visit._messages.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    reply = await visit.run()
    assert (reply.status, reply.error["code"]) == (408, "body_timeout")
    assert reply.headers["x-should-retry"] == "true"


async def test_a_client_that_leaves_within_its_body_gets_nothing(rig: Rig):
    """Leaving before the body is complete ends the exchange without an answer."""
    visit = rig.post(BODY)
    visit._messages = asyncio.Queue()
    visit._messages.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    visit.leave()
    reply = await visit.run()
    assert reply.status == 0
    assert rig.calls.opened == []


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        (b"", 0),
        (b"{}", 1),
        (b"[" * 70 + b"]" * 70, 70),
        (b"[" * 1_000_000, 1_000_000),
        (b"]" * 100 + b"[" * 70, 0),
        (b"[" + b"[]," * 100 + b"1]", 2),
        (b'["' + b"[" * 100 + b'"]', 1),
        (b'["\\"' + b"[" * 100 + b'"]', 1),
        (b'["\\\\",' + b"[" * 99, 100),
        (b'"' + b"[" * 100, 0),
        (b'"\\' + b"[" * 100, 0),
        (b"{[" * 40, 80),
    ],
)
def test_depth_is_known_without_parsing(body: bytes, depth: int):
    """Brackets count outside of strings only, whatever else the bytes are."""
    found = depth_of(body)
    assert found == depth or depth <= found <= MOST_DEPTH


@given(st.recursive(st.text() | st.integers(), st.lists, max_leaves=40))
def test_depth_is_that_of_the_value(value: Any):
    """What is encoded as JSON is never taken for flatter than it is."""

    def levels(part: Any) -> int:
        return 1 + max(map(levels, part), default=0) if isinstance(part, list) else 0

    wrapped: Any = value
    for _ in range(MOST_DEPTH + 1):
        wrapped = [wrapped]
    for part in (value, wrapped):
        found = depth_of(json.dumps(part).encode())
        assert found == levels(part) or levels(part) <= found <= MOST_DEPTH


async def test_a_deep_body_is_refused(rig: Rig):
    """Nesting over the limit is a 400 that says so; nothing parses it."""
    rig.rules = rules(max_body_bytes=1_000_000)
    for opening in (b"[", b'{"a":'):
        reply = await rig.post(opening * 100_000).run()
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert "64 levels" in reply.error["message"]


async def test_strings_full_of_quotes_take_no_time(rig: Rig):
    """Bodies made to make the look for strings slow are refused like any other."""
    rig.rules = rules(max_body_bytes=4_000_000)
    for body in (b'"\\' * 1_000_000 + b"[" * 70, b'"' + b'\\"' * 1_000_000 + b"[" * 70):
        assert (await rig.post(body).run()).status == 400
