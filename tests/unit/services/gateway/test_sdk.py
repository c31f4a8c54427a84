"""The official `openai` client reads our answers, streams and errors, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from proto.errors import ErrorCode, PdbusError
from services.gateway.edge import EdgeServer
from tests.support.checked.sdk import sdk
from tests.unit.services.gateway.rig import MODEL, Rig, then_fail

USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator:
    """A client that talks to the rig and does not retry."""
    server = EdgeServer(rig.post()._app, host="127.0.0.1", port=0)
    running = asyncio.ensure_future(server.serve())
    async with sdk(server.port) as made:
        yield made.chat.completions
    await server.stop(1.0)
    await running


async def test_an_answer(client):
    """A whole answer has text, finish and usage where the client looks for them."""
    answer = await client.create(model=MODEL, messages=USER)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 2
    assert answer._request_id


async def test_a_stream(client):
    """The client puts the chunks together, with usage at the end."""
    stream = await client.create(
        model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello world"
    assert chunks[-1].usage.completion_tokens == 2


async def test_the_answer_can_be_sent_back(client):
    """What the client makes of an answer is valid as history."""
    answer = await client.create(model=MODEL, messages=USER)
    again = await client.create(model=MODEL, messages=[*USER, answer.choices[0].message, *USER])
    assert again.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"temperature": 9}, "BadRequestError", "invalid_value"),
        ({"audio": {}}, "BadRequestError", "unsupported_parameter"),
        ({"model": "nope"}, "NotFoundError", "model_not_found"),
    ],
)
async def test_errors_are_raised_by_kind(client, fields: dict, kind: str, code: str):
    """Each status becomes the client's own exception, with our message and code."""
    with pytest.raises(getattr(openai, kind)) as caught:
        await client.create(**({"model": MODEL, "messages": USER} | fields))
    assert caught.value.code == code
    assert caught.value.body["message"]


async def test_a_failure_in_mid_stream_is_raised(rig: Rig, client):
    """The client raises on our error event, after the text that came before."""
    rig.calls.script = then_fail(PdbusError(ErrorCode.DECODE_LOST), "Hello")
    seen: list[str] = []

    async def read() -> None:
        async for chunk in await client.create(model=MODEL, messages=USER, stream=True):
            seen.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - kept on failure

    with pytest.raises(openai.APIError, match="decode was lost"):
        await read()
    assert "".join(seen) == "Hello"
