"""Calls, reasoning, log-probabilities and choices through a whole stack, read by the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.stack import RunningStack, run_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

SAYS = json.dumps({"answer": "say"})
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "time"}},
]
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Tromsø"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair of workers that say what they are told to, and take it apart."""
    env = {"PDBUS_PREFILL_SCRIPT": SAYS, "PDBUS_DECODE_SCRIPT": SAYS}
    parsers = ("--tool-parser=qwen25", "--reasoning-parser=qwen3")
    with run_stack(tmp_path_factory.mktemp("stack"), *parsers, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def client(stack: RunningStack) -> Iterator[openai.OpenAI]:
    """The official client, without retries."""
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def say(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    """Ask for an answer that is this text."""
    messages: list[Any] = [{"role": "user", "content": f"[[say]]{text}[[/say]]"}]
    return client.chat.completions.create(model="scripted", messages=messages, **fields)


def test_two_calls_whole_and_streamed(client: openai.OpenAI):
    """Both forms have the same two calls, and each delta of the stream belongs to one of them."""
    (choice,) = say(client, CALLS, tools=TOOLS).choices
    assert choice.finish_reason == "tool_calls"
    whole = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
    assert whole == [("weather", {"city": "Tromsø"}), ("time", {})]
    calls: dict[int, dict[str, str]] = {}
    for chunk in say(client, CALLS, tools=TOOLS, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or ():
            first = piece.index not in calls
            assert (piece.id is not None) is first
            call = calls.setdefault(piece.index, {"name": piece.function.name, "arguments": ""})
            call["arguments"] += piece.function.arguments
    streamed = [(call["name"], json.loads(call["arguments"])) for call in calls.values()]
    assert streamed == whole


def test_reasoning_is_not_the_answer(client: openai.OpenAI):
    """What stands between the marks of reasoning has its own field and its own count."""
    answer = say(client, "<think>Let me see.</think>Yes.")
    message = answer.choices[0].message
    assert (message.reasoning_content.strip(), message.content) == ("Let me see.", "Yes.")
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0
    mixed = say(client, "<think>x</think>y", extra_body={"separate_reasoning": False})
    assert "think" in mixed.choices[0].message.content


def test_each_token_has_its_logprob(client: openai.OpenAI):
    """One entry a token, the first of which was drawn by prefill; their bytes are the text."""
    answer = say(client, "né 🙂", logprobs=True, top_logprobs=2)
    told = answer.choices[0].logprobs.content
    assert len(told) == answer.usage.completion_tokens
    said = b"".join(bytes(entry.bytes) for entry in told[:-1])
    assert said.decode() == answer.choices[0].message.content == "né 🙂"
    assert all(len(entry.top_logprobs) == 2 for entry in told)
    streamed = [
        entry
        for chunk in say(client, "né 🙂", logprobs=True, top_logprobs=2, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [(entry.token, entry.bytes) for entry in streamed] == [(e.token, e.bytes) for e in told]


def test_choices_and_prompts_side_by_side(client: openai.OpenAI):
    """Three choices of a chat, and two of each of two prompts: all come, in their order."""
    answer = say(client, "one", n=3)
    assert [choice.message.content for choice in answer.choices] == ["one"] * 3
    prompts = ["[[say]]a[[/say]]", "[[say]]b[[/say]]"]
    several = client.completions.create(model="scripted", prompt=prompts, n=2, echo=True)
    texts = [choice.text for choice in several.choices]
    assert texts == [f"{prompt}{prompt[7]}" for prompt in prompts for _ in range(2)]
    alone = client.completions.create(model="scripted", prompt=prompts[0])
    assert several.usage is not None
    assert alone.usage is not None
    assert several.usage.prompt_tokens == 2 * alone.usage.prompt_tokens
    assert several.usage.completion_tokens == 4 * alone.usage.completion_tokens


def test_what_the_engine_cannot_is_refused(client: openai.OpenAI):
    """The scripted engine has no grammar: a schema is a 400 with its field, not a free answer."""
    with pytest.raises(openai.BadRequestError) as caught:
        say(client, "{}", response_format={"type": "json_object"})
    assert caught.value.param == "response_format"
    (model,) = client.models.list().data
    assert set(model.to_dict()["features"]) == {"logprobs", "tools", "reasoning"}
