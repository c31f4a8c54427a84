"""SmolLM2 behind the whole product: what answers say, and that they match what they are held to.

`make judge-text` runs it; it loads two real engines.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema_rs
import openai
import pydantic
import pytest

from tests.clients.node import Node, node
from tests.support.checked.sdk import sdk
from tests.support.reference import needed
from tests.support.stack import RunningStack, run_stack

__all__ = ["node"]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("sglang"),
]

MODEL = "smollm2"
READY_S = 600.0
CAPITAL = "What is the capital of France?"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    age: int


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair of real engines."""
    options = (f"--model={MODEL}", "--tool-parser=hermes")
    place = tmp_path_factory.mktemp("stack")
    with run_stack(place, *options, engine="sglang", ready_s=READY_S) as running:
        yield running


def asked(text: str, tokens: int = 40, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    limits = {"max_tokens": tokens, "temperature": 0}
    return {"model": MODEL, "messages": [message]} | limits | fields


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


async def whole(client: openai.AsyncOpenAI, **body: Any) -> Any:
    return (await client.chat.completions.create(**body)).choices[0]


async def streamed(client: openai.AsyncOpenAI, **body: Any) -> list[Any]:
    stream = await client.chat.completions.create(**body, stream=True)
    return [chunk.choices[0] async for chunk in stream]


async def test_it_knows_the_capital(stack: RunningStack):
    """The text makes sense, is the same streamed and whole, by every endpoint that chats."""
    async with sdk(stack.port, timeout=120) as client:
        answer = await whole(client, **asked(CAPITAL))
        parts = await streamed(client, **asked(CAPITAL))
        item = {"role": "user", "content": CAPITAL}
        response = await client.responses.create(
            model=MODEL, input=[item], max_output_tokens=40, temperature=0
        )
        three = await client.chat.completions.create(**asked(CAPITAL, n=3))
    assert "Paris" in answer.message.content
    assert "".join(part.delta.content or "" for part in parts) == answer.message.content
    assert response.output_text == answer.message.content
    assert {one.message.content for one in three.choices} == {answer.message.content}


async def test_stop_strings_cut_across_tokens(stack: RunningStack):
    """A stop string from inside a known text ends it before its first character (API-04)."""
    async with sdk(stack.port, timeout=120) as client:
        text = (await whole(client, **asked(CAPITAL))).message.content
        middle = len(text) // 2
        stop = text[middle : middle + 9]
        right = text[: text.index(stop)]
        answer = await whole(client, **asked(CAPITAL, stop=stop))
        parts = await streamed(client, **asked(CAPITAL, stop=stop))
    assert (answer.message.content, answer.finish_reason) == (right, "stop")
    assert "".join(part.delta.content or "" for part in parts) == right
    assert parts[-1].finish_reason == "stop"


async def test_log_probabilities_are_those_of_each_token(stack: RunningStack):
    """API-07: streamed and whole agree, one entry a token, the first one of prefill too."""
    body = asked(CAPITAL, 12, logprobs=True, top_logprobs=3)
    async with sdk(stack.port, timeout=120) as client:
        answer = await client.chat.completions.create(**body)
        parts = await streamed(client, **body)
    right = answer.choices[0].logprobs.content
    found = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
    assert len(right) == answer.usage.completion_tokens == len(found)
    for one, other in zip(found, right, strict=True):
        assert one.token == other.token
        assert abs(one.logprob - other.logprob) < 1e-3
        assert len(one.top_logprobs) == 3
        assert max(top.logprob for top in one.top_logprobs) == pytest.approx(one.logprob)
    said = "".join(one.token for one in right if not one.token.startswith("<|"))
    assert said == answer.choices[0].message.content


async def test_answers_match_what_they_are_held_to(stack: RunningStack):
    """API-17: schemas, patterns and grammars are enforced by the engine, streamed and whole."""
    async with sdk(stack.port, timeout=120) as client:
        pet = await client.chat.completions.parse(
            **asked("A pet, as JSON.", 60), response_format=Pet
        )
        held = await whole(client, **asked("A person.", 80, response_format=form(PERSON)))
        parts = await streamed(client, **asked("A person.", 80, response_format=form(PERSON)))
        loose = await whole(
            client, **asked("Say something in JSON.", 200, response_format={"type": "json_object"})
        )
        digits = {"regex": r"[0-9]{3}-[a-f]{2}"}
        matched = await whole(client, **asked("A number.", 20, extra_body=digits))
        grammar = {"ebnf": 'root ::= ("yes" | "no") "!"'}
        chosen = await whole(client, **asked("Is it?", 20, extra_body=grammar))
        response = await client.responses.create(
            model=MODEL,
            input="A person.",
            max_output_tokens=80,
            temperature=0,
            text={"format": {"type": "json_schema", "name": "it", "schema": PERSON}},
        )
        parsed = await client.responses.parse(
            model=MODEL, input="A pet.", max_output_tokens=60, temperature=0, text_format=Pet
        )
    assert pet.choices[0].message.parsed.kind in {"cat", "dog"}
    assert parsed.output_parsed.kind in {"cat", "dog"}
    validator = jsonschema_rs.Draft202012Validator(PERSON)
    for text in (
        held.message.content,
        "".join(part.delta.content or "" for part in parts),
        response.output_text,
    ):
        validator.validate(json.loads(text))
    if loose.finish_reason == "stop":
        assert isinstance(json.loads(loose.message.content), dict)
    assert re.fullmatch(digits["regex"], matched.message.content)
    assert chosen.message.content in {"yes!", "no!"}


async def test_schemas_of_the_test_suite_are_kept_or_refused(stack: RunningStack):
    """API-17: of each public schema the answer is valid, or the request is a 400; nothing dies."""
    pids = stack.pids()
    kept, refused = 0, set[str]()
    async with sdk(stack.port, timeout=120) as client:
        for file in sorted(needed("jsonschema").glob("*.json")):
            for group in json.loads(file.read_text(encoding="utf-8"))[:6]:
                schema = group["schema"]
                body = asked("An example.", 60, response_format=form(schema))
                try:
                    answer = await whole(client, **body)
                except openai.BadRequestError as error:
                    refused.add(str(error.param).partition(".")[0])
                    continue
                if answer.finish_reason == "stop":
                    kept += 1
                    value = json.loads(answer.message.content)
                    jsonschema_rs.Draft202012Validator(schema).validate(value)
        assert (await whole(client, **asked(CAPITAL))).message.content
    print(f"{kept} schemas kept to the end")
    assert kept
    assert refused <= {"response_format"}
    assert stack.pids() == pids


async def test_calls_that_must_be_made_are_made(stack: RunningStack):
    """A required call and a named one come as calls whose arguments fit, streamed and whole."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    async with sdk(stack.port, timeout=120) as client:
        for choice in ("required", named):
            # One call: a small model would go on with calls for ever.
            once = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
            body = asked("The weather in Paris?", 100, **once)
            answer = await whole(client, **body)
            async with client.chat.completions.stream(**body) as events:
                final = (await events.get_final_completion()).choices[0]
            for one in (answer, final):
                assert one.finish_reason == "tool_calls"
                for call in one.message.tool_calls:
                    assert call.function.name == "get_weather"
                    assert set(json.loads(call.function.arguments)) == {"city"}


async def test_the_npm_client_is_held_too(node: Node, stack: RunningStack):
    """Structured output works with the npm client's own parser."""
    fields = {"response_format": form(PERSON), "max_tokens": 80}
    found = await asyncio.to_thread(
        node.run, "gathered", stack.port, model=MODEL, text="A person.", fields=fields
    )
    text = found["completion"]["choices"][0]["message"]["content"]
    jsonschema_rs.Draft202012Validator(PERSON).validate(json.loads(text))
