"""Bodies that cannot be answered are refused at the edge, before anything reaches the bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest

from tests.support.http_client import Exchange, chat_body, get, post
from tests.support.stack import RunningStack, run_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

NAN = b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"temperature":NaN}'
HUGE = b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"temperature":1e999}'

BAD: dict[str, tuple[bytes | dict[str, Any], int, str]] = {
    "no JSON": (b'{"model": "scripted", ', 400, "invalid_request"),
    "not UTF-8": (b'{"model": "\xff"}', 400, "invalid_request"),
    "a list": (b"[]", 400, "invalid_request"),
    "nothing": (b"", 400, "invalid_request"),
    "NaN": (NAN, 400, "invalid_value"),
    "infinite": (HUGE, 400, "invalid_value"),
    "no messages": ({"model": "scripted"}, 400, "invalid_request"),
    "empty messages": ({"model": "scripted", "messages": []}, 400, "invalid_value"),
    "wrong type": (chat_body("x", max_tokens="many"), 400, "invalid_value"),
    "zero tokens": (chat_body("x", max_tokens=0), 400, "invalid_value"),
    "too hot": (chat_body("x", temperature=3), 400, "invalid_value"),
    "unknown field": (chat_body("x", frobnicate=1), 400, "unsupported_parameter"),
    "unsupported field": (chat_body("x", audio={"voice": "alloy"}), 400, "unsupported_parameter"),
    "unknown model": (chat_body("x", model="absent"), 404, "model_not_found"),
    "too long": (chat_body("word " * 40_000), 400, "context_length_exceeded"),
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair of workers."""
    with run_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture
async def traffic(stack: RunningStack) -> AsyncIterator[list[str]]:
    """Collect the subjects of all messages about requests."""
    subjects: list[str] = []

    async def hear(message: Any) -> None:
        if not message.subject.startswith("pdbus.v1.heartbeat."):
            subjects.append(message.subject)

    client = await nats.connect(stack.record.nats_url)
    try:
        for subject in ("pdbus.v1.>", "$KV.>"):
            await client.subscribe(subject, cb=hear)
        await client.flush()
        # What earlier requests left behind must have passed.
        await asyncio.sleep(1.5)
        subjects.clear()
        yield subjects
    finally:
        await client.close()


async def test_bad_bodies_are_refused_at_the_edge(stack: RunningStack, traffic: list[str]) -> None:
    """Each bad body gets its status and code in OpenAI's nested shape, and nobody hears of it."""
    wrong: list[str] = []
    for name, (body, status, code) in BAD.items():
        for stream in (False, True):
            sent = body | {"stream": stream} if isinstance(body, dict) else body
            reply = await post(stack.port, sent, timeout_s=5)
            error = reply.error or {}
            shape = {"message", "type", "param", "code"} <= set(error)
            if (reply.status, error.get("code"), shape) != (status, code, True):
                wrong.append(f"{name}: {reply.status} {error}")
    assert not wrong, "\n".join(wrong)
    await asyncio.sleep(0.2)
    assert traffic == []


async def test_good_bodies_are_heard(stack: RunningStack, traffic: list[str]) -> None:
    """The listener of the test above does hear requests that are carried out."""
    assert (await post(stack.port, chat_body("x", max_tokens=2))).claims_completeness
    await asyncio.sleep(0.2)
    assert any(subject.startswith("$KV.PDBUS_REQUESTS.") for subject in traffic)
    assert any(subject.endswith(".start") for subject in traffic)


async def test_paths_methods_and_media_types(stack: RunningStack) -> None:
    """Unknown paths, wrong methods and other media types are refused in the same shape."""
    missing = await get(stack.port, "/v1/nothing")
    assert (missing.status, missing.json["error"]["code"]) == (404, "not_found")
    method = await get(stack.port, "/v1/chat/completions")
    assert (method.status, method.json["error"]["code"]) == (405, "method_not_allowed")
    data = json.dumps(chat_body("x")).encode()
    exchange = await Exchange.open(stack.port, "POST", "/v1/chat/completions", data, "text/plain")
    media = await exchange.finish()
    assert (media.status, media.json["error"]["code"]) == (415, "unsupported_media_type")
    models = await get(stack.port, "/v1/models")
    assert [model["id"] for model in models.json["data"]] == ["scripted"]
