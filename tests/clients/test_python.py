"""The official `openai` client for Python, as it is, against a running stack."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.clients.told import CALLS, REASONED, SLOW_TEXT, idle, say
from tests.support.checked.sdk import sdk
from tests.support.stack import RunningStack
from tests.support.words import NAME

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

TEXT = 'Grüße, \U0001f468\u200d\U0001f469\u200d\U0001f467! "quoted"\n\tnew line'
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def asked(text: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"model": NAME, "messages": [message], "temperature": 0} | fields


async def test_an_answer(stack: RunningStack):
    """A whole answer has text, finish, usage, request id and our headers."""
    async with sdk(stack.port) as client:
        raw = await client.chat.completions.with_raw_response.create(**asked(say(TEXT)))
        answer = raw.parse()
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0
    assert answer.id == f"chatcmpl-{raw.request_id}"
    assert raw.headers["x-pdbus-decode"]


async def test_a_stream_and_its_helper(stack: RunningStack):
    """Chunks, and the events that the client's helper makes of them, give the whole text."""
    async with sdk(stack.port) as client:
        options = {"include_usage": True}
        stream = await client.chat.completions.create(
            **asked(say(TEXT), stream=True, stream_options=options)
        )
        chunks = [chunk async for chunk in stream]
        async with client.chat.completions.stream(**asked(say(TEXT))) as events:
            final = await events.get_final_completion()
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == TEXT == final.choices[0].message.content
    assert chunks[-1].usage.completion_tokens > 0


async def test_the_synchronous_client(stack: RunningStack):
    """The client without asyncio works the same."""

    def ask() -> str:
        url = f"http://127.0.0.1:{stack.port}/v1"
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
            stream = client.chat.completions.create(**asked(say("Hi."), stream=True))
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == "Hi."


async def test_tools_there_and_back(stack: RunningStack):
    """Calls come as objects, whole and streamed; with their results the talk goes on."""
    async with sdk(stack.port) as client:
        answer = await client.chat.completions.create(**asked(say(CALLS), tools=[TOOL]))
        message = answer.choices[0].message
        async with client.chat.completions.stream(**asked(say(CALLS), tools=[TOOL])) as events:
            streamed = (await events.get_final_completion()).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
            for call in message.tool_calls
        ]
        body = asked(say(CALLS), tools=[TOOL])
        body["messages"] += [message, *results, {"role": "user", "content": say("Done.")}]
        last = await client.chat.completions.create(**body)
    assert answer.choices[0].finish_reason == "tool_calls"
    for calls in (message.tool_calls, streamed.tool_calls):
        found = [(c.function.name, json.loads(c.function.arguments)) for c in calls]
        assert found == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
        assert len({call.id for call in calls}) == 2
    assert last.choices[0].message.content == "Done."


async def test_reasoning(stack: RunningStack):
    """Reasoning stands beside the text, whole and streamed, and is counted."""
    async with sdk(stack.port) as client:
        answer = await client.chat.completions.create(**asked(say(REASONED)))
        stream = await client.chat.completions.create(**asked(say(REASONED), stream=True))
        deltas = [chunk.choices[0].delta async for chunk in stream]
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Six times seven.", "Forty-two.")
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == "Six times seven."


async def test_responses(stack: RunningStack):
    """`responses.create`, its stream and the stream helper give the same items."""
    request = {"model": NAME, "input": say(REASONED), "instructions": "Be short.", "temperature": 0}
    async with sdk(stack.port) as client:
        whole = await client.responses.create(**request)
        events = [event async for event in await client.responses.create(**request, stream=True)]
        async with client.responses.stream(**request) as stream:
            final = await stream.get_final_response()
    assert whole.output_text == final.output_text == "Forty-two."
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]
    assert events[0].type == "response.created"
    assert whole.usage.total_tokens == events[-1].response.usage.total_tokens


async def test_responses_with_tools(stack: RunningStack):
    """A call of a function goes out as an item, and its output comes back as one."""
    tool = {"type": "function"} | TOOL["function"]
    said = [{"role": "user", "content": say(CALLS)}]
    async with sdk(stack.port) as client:
        first = await client.responses.create(model=NAME, input=said, tools=[tool], temperature=0)
        calls = [item for item in first.output if item.type == "function_call"]
        outputs = [
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            for call in calls
        ]
        told = {"role": "user", "content": say("Done.")}
        second = await client.responses.create(
            model=NAME, input=[*said, *first.output, *outputs, told], tools=[tool], temperature=0
        )
        with pytest.raises(openai.BadRequestError, match="store"):
            await client.responses.create(model=NAME, input="x", store=True)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.create(model=NAME, input="x", previous_response_id=first.id)
        broken = {"model": NAME, "input": "break in decode", "max_output_tokens": 60}
        stream = await client.responses.create(**broken, stream=True)
        with pytest.raises(openai.APIError, match="engine failed"):
            _ = [event async for event in stream]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"city": "Rome"}]
    assert second.output_text == "Done."


@pytest.mark.parametrize(
    ("fields", "kind", "code", "param"),
    [
        ({"temperature": 9}, "BadRequestError", "invalid_value", "temperature"),
        ({"messages": []}, "BadRequestError", "invalid_value", "messages"),
        ({"extra_body": {"bogus": 1}}, "BadRequestError", "unsupported_parameter", "bogus"),
        ({"model": "nope"}, "NotFoundError", "model_not_found", "model"),
        ({"max_tokens": 10**6}, "BadRequestError", "context_length_exceeded", "messages"),
    ],
)
async def test_errors(
    stack: RunningStack, fields: dict[str, Any], kind: str, code: str, param: str
):
    """Each status becomes the client's own exception, with our message, code and param."""
    async with sdk(stack.port) as client:
        with pytest.raises(getattr(openai, kind)) as caught:
            await client.chat.completions.create(**asked("Hi", **fields))
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.body["message"]
    assert caught.value.request_id


async def test_a_stream_that_breaks_is_raised(stack: RunningStack):
    """An error in mid-stream is raised after the text that came before it."""
    text = ""
    async with sdk(stack.port) as client:
        body = asked("break in decode", max_tokens=50, stream=True)
        stream = await client.chat.completions.create(**body)

        async def read() -> None:
            nonlocal text
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""

        with pytest.raises(openai.APIError) as caught:
            await read()
    assert text
    assert caught.value.code == "engine_error"


async def test_a_timeout_ends_the_request(stack: RunningStack):
    """A client that waits no longer gets its own error, and its request does not run on."""
    async with sdk(stack.port, timeout=0.5) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(
                **asked(SLOW_TEXT, max_tokens=400, extra_body={"ignore_eos": True})
            )
    await idle(stack.port)


async def test_models(stack: RunningStack):
    """The list of models can be paged through, and one be fetched."""
    async with sdk(stack.port) as client:
        assert [model.id async for model in client.models.list()] == [NAME]
        assert (await client.models.retrieve(NAME)).id == NAME
