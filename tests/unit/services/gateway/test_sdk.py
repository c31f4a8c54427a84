"""The official `openai` client reads our answers, streams and errors, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pydantic
import pytest

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.output import CallDelta, Details, TokenLogprob
from services.gateway.api import Delta
from services.gateway.edge import EdgeServer
from tests.support.checked.sdk import sdk
from tests.unit.services.gateway.rig import ABLE, MODEL, Rig, deltas, then_fail, words

USER = [{"role": "user", "content": "Hi"}]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "strict": True,
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    }
    for name in ("weather", "time")
]


def piece(*calls: CallDelta) -> Delta:
    return Delta(b"\0\0\0\0", "", details=Details(calls=calls))


@pytest.fixture
async def whole_client(rig: Rig) -> AsyncIterator:
    """A client that talks to the rig and does not retry."""
    server = EdgeServer(rig.post()._app, host="127.0.0.1", port=0)
    running = asyncio.ensure_future(server.serve())
    async with sdk(server.port) as made:
        yield made
    await server.stop(1.0)
    await running


@pytest.fixture
def client(whole_client):
    """The client's chat completions."""
    return whole_client.chat.completions


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


async def test_calls_come_in_pieces(rig: Rig, client):
    """The client's own stream helper puts two calls together, and finds them complete."""
    rig.fleet.served = (ABLE,)
    rig.calls.script = deltas(
        piece(CallDelta(index=0, id="call_a", name="weather")),
        piece(CallDelta(index=0, arguments='{"city": "Os')),
        piece(CallDelta(index=0, arguments='lo"}'), CallDelta(index=1, id="b", name="time")),
        piece(CallDelta(index=1, arguments="{}")),
        finish=FinishReason.TOOL_CALLS,
    )
    async with client.stream(model=MODEL, messages=USER, tools=TOOLS) as stream:
        done = [e async for e in stream if e.type == "tool_calls.function.arguments.done"]
        (choice,) = (await stream.get_final_completion()).choices
    assert [(e.name, e.arguments) for e in done] == [
        ("weather", '{"city": "Oslo"}'),
        ("time", "{}"),
    ]
    assert choice.finish_reason == "tool_calls"
    assert [call.id for call in choice.message.tool_calls] == ["call_a", "b"]


async def test_an_answer_can_be_parsed(rig: Rig, client):
    """The client's own parser sends a strict schema and reads the answer as the type."""

    class Weather(pydantic.BaseModel):
        city: str
        degrees: int | None

    rig.fleet.served = (ABLE,)
    rig.calls.script = words('{"city": "Oslo", ', '"degrees": 3}')
    answer = await client.parse(model=MODEL, messages=USER, response_format=Weather)
    assert answer.choices[0].message.parsed == Weather(city="Oslo", degrees=3)
    assert rig.calls.opened[0].sampling.guide is not None


async def test_several_choices_with_logprobs(rig: Rig, client):
    """Choices and log-probabilities are where the client looks for them."""
    rig.fleet.served = (ABLE,)
    token = rig.text.tokenizer.encode("!")[0]
    entry = TokenLogprob(token=token, logprob=-0.5, top=((token, -0.5),))
    rig.calls.script = deltas(Delta(b"\0\0\0\0", "!", details=Details(logprobs=(entry,))))
    answer = await client.create(model=MODEL, messages=USER, n=2, logprobs=True, top_logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        (told,) = choice.logprobs.content
        assert (told.token, told.logprob, told.bytes) == ("!", -0.5, [33])
        assert told.top_logprobs[0].token == "!"


async def test_completions(rig: Rig, whole_client):
    """The older endpoint is read too, whole and streamed."""
    answer = await whole_client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=4)
    assert [choice.text for choice in answer.choices] == ["Hello world"] * 2
    stream = await whole_client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


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
