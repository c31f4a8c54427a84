"""The npm `openai` package, as it is, against a running stack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.node import Node
from tests.clients.told import CALLS, REASONED, SLOW_TEXT, idle, say
from tests.support.stack import RunningStack
from tests.support.words import NAME

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

TEXT = 'Grüße, \U0001f468\u200d\U0001f469\u200d\U0001f467! "quoted"\n\tnew line'


def run(node: Node, stack: RunningStack, scenario: str, **given: Any) -> Any:
    return node.run(scenario, stack.port, model=NAME, **given)


def test_an_answer(node: Node, stack: RunningStack):
    """A whole answer has text, finish, usage and request id where the client looks for them."""
    found = run(node, stack, "chat", text=say(TEXT))
    answer = found["answer"]
    assert answer["choices"][0]["message"]["content"] == TEXT
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["total_tokens"] > answer["usage"]["completion_tokens"] > 0
    assert found["requestID"] == answer["id"].removeprefix("chatcmpl-")
    assert found["decode"]


def test_a_stream(node: Node, stack: RunningStack):
    """The chunks make the text; the usage comes last, as it was asked for."""
    chunks = run(node, stack, "stream", text=say(TEXT))["chunks"]
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert said == TEXT
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0


def test_the_clients_own_stream_helper(node: Node, stack: RunningStack):
    """The helper that puts a stream together accepts every chunk, with several choices too."""
    found = run(node, stack, "gathered", text=say(TEXT))
    assert found["completion"]["choices"][0]["message"]["content"] == TEXT
    assert "".join(found["deltas"]) == TEXT
    three = run(node, stack, "gathered", text=say("Hi."), fields={"n": 3})["completion"]
    assert [c["message"]["content"] for c in three["choices"]] == ["Hi."] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_tools(node: Node, stack: RunningStack, stream: bool):
    """The client's tool runner calls the functions that the model asks for, whole or streamed."""
    found = run(node, stack, "tools", text=say(CALLS), stream=stream)
    assert found["called"] == ["Paris", "Rome"]
    assert [m["role"] for m in found["messages"]] == ["user", "assistant", "tool", "tool"]


def test_completions(node: Node, stack: RunningStack):
    """The older endpoint works too."""
    found = run(node, stack, "completion", text=say("Once."), fields={"max_tokens": 32})
    assert found["answer"]["choices"][0]["text"] == "Once."


def test_models(node: Node, stack: RunningStack):
    """The list of models can be paged through, and one be fetched."""
    found = run(node, stack, "models")
    assert found["ids"] == [NAME]
    assert found["one"]["id"] == NAME


def test_responses(node: Node, stack: RunningStack):
    """`responses.create` and the client's stream helper agree on the text."""
    found = run(node, stack, "response", text=say(REASONED), fields={"instructions": "Be short."})
    assert found["text"] == found["final"] == "Forty-two."
    assert found["events"][0] == "response.created"
    assert found["events"][-1] == "response.completed"
    assert [item["type"] for item in found["whole"]["output"]] == ["reasoning", "message"]


def test_errors(node: Node, stack: RunningStack):
    """Each status becomes the client's own error, with our message, code and param."""
    cases = {
        "bad": {"temperature": 9},
        "unknown": {"frobnicate": 1},
        "model": {"model": "nope"},
        "long": {"max_tokens": 1_000_000},
    }
    found = run(node, stack, "errors", cases=cases)
    assert {name: (e["kind"], e["code"], e["param"]) for name, e in found.items()} == {
        "bad": ("BadRequestError", "invalid_value", "temperature"),
        "unknown": ("BadRequestError", "unsupported_parameter", "frobnicate"),
        "model": ("NotFoundError", "model_not_found", "model"),
        "long": ("BadRequestError", "context_length_exceeded", "messages"),
    }
    assert all(e["message"] and e["requestID"] for e in found.values())


def test_a_stream_that_breaks_is_raised(node: Node, stack: RunningStack):
    """An error in mid-stream is raised after the text that came before it."""
    found = run(node, stack, "broken", text="break in decode", fields={"max_tokens": 50})
    assert found["text"]
    assert found["error"]["kind"] == "APIError"
    assert found["error"]["code"] == "engine_error"


async def test_a_timeout_ends_the_request(node: Node, stack: RunningStack):
    """A client that waits no longer is told so by itself, and its request does not run on."""
    fields = {"max_tokens": 400, "ignore_eos": True}
    found = run(node, stack, "timeout", text=SLOW_TEXT, timeoutMs=500, fields=fields)
    assert found["error"]["kind"] == "APIConnectionTimeoutError"
    await idle(stack.port)


async def test_aborting_ends_the_request(node: Node, stack: RunningStack):
    """An AbortController ends a stream and a whole answer, and both requests with them."""
    fields = {"max_tokens": 400, "ignore_eos": True}
    found = run(node, stack, "aborted", text=SLOW_TEXT, fields=fields, second=fields)
    assert found["chunks"] == 3
    assert found["error"]["kind"] == "APIUserAbortError"
    await idle(stack.port)


def test_structured_output_needs_workers_that_can(node: Node, stack: RunningStack):
    """Where the workers cannot hold answers to a schema, asking for one is a clear refusal."""
    schema = {"name": "n", "schema": {"type": "object"}}
    form = {"type": "json_schema", "json_schema": schema}
    found = run(node, stack, "errors", cases={"form": {"response_format": form}})
    assert found["form"]["kind"] == "BadRequestError"
    assert found["form"]["param"] == "response_format"
    assert json.dumps(found)
