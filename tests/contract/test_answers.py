"""Every answer that the suites read is checked; here is that the check finds what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.checked.answers import AnswerCheck, SchemaBreach
from tests.support.reference import needed

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
JSON, SSE = "application/json", "text/event-stream; charset=utf-8"
ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": "c"}}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def chunk(
    delta: dict[str, Any], finish: str | None = None, index: int = 0, **fields: Any
) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    } | fields


ROLE = chunk({"role": "assistant", "content": ""})
SAID = chunk({"content": "x"})
END = chunk({}, "stop")
LAST = chunk({}, choices=[], usage=USAGE)

CALL = {"index": 0, "function": {"arguments": "{}"}}


def sse(*events: Any) -> bytes:
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def check(path: str, body: Any, *, status: int = 200, kind: str = JSON) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    AnswerCheck(path).feed(status, kind, data, whole=True)


def test_a_right_stream_passes():
    """Roles, text, finish, usage, comments and [DONE] in their order are no breach."""
    body = sse(ROLE) + b": ping\n\n" + sse(SAID, END, LAST, "[DONE]")
    check(CHAT, body, kind=SSE)
    check(CHAT, sse(ROLE, SAID, ERROR), kind=SSE)
    check(CHAT, sse(ERROR), kind=SSE)


def test_a_stream_may_break_off_anywhere():
    """A test that hangs up has seen a part of a stream; only what came is looked at."""
    body = sse(ROLE, SAID, END, "[DONE]")
    one = AnswerCheck(CHAT)
    for size in range(len(body)):
        one.feed(200, SSE, body[:size], whole=False)


@pytest.mark.parametrize(
    "events",
    [
        (ROLE, SAID, END),
        (SAID, END, "[DONE]"),
        (ROLE, ROLE, END, "[DONE]"),
        (ROLE, SAID, "[DONE]"),
        (ROLE, END, SAID, "[DONE]"),
        (ROLE, END, END, "[DONE]"),
        (ROLE, LAST, END, "[DONE]"),
        (ROLE, END, LAST, LAST, "[DONE]"),
        (ROLE, END, "[DONE]", "[DONE]"),
        (ROLE, SAID, ERROR, "[DONE]"),
        (ROLE, {**SAID, "id": "other"}, END, "[DONE]"),
        (ROLE, {**SAID, "created": 2}, END, "[DONE]"),
        (ROLE, {**SAID, "choices": []}, END, "[DONE]"),
        (ROLE, chunk({"role": "assistant"}, index=1), END, "[DONE]"),
        (ROLE, '{"x": NaN}', END, "[DONE]"),
        (ROLE, chunk({"tool_calls": [CALL, CALL]}), END, "[DONE]"),
    ],
)
def test_the_order_of_a_stream_is_checked(events: tuple[Any, ...]):
    """What is missing, doubled or out of place in a stream is a breach."""
    with pytest.raises(SchemaBreach):
        check(CHAT, sse(*events), kind=SSE)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (CHAT, sse(ROLE, chunk({"content": 7}), END, "[DONE]"), 200, SSE),
        (CHAT, sse(ROLE, chunk({}, "abort"), "[DONE]"), 200, SSE),
        (CHAT, sse(ROLE, SAID, {"error": "flat"}), 200, SSE),
        (CHAT, ERROR, 200, JSON),
        (CHAT, {"message": "flat", "type": "t", "param": None, "code": 400}, 400, JSON),
        (CHAT, {"error": {"message": "m", "type": "t", "param": None, "code": 400}}, 400, JSON),
        (CHAT, b"Not found", 404, "text/plain"),
        (TEXT, {"object": "text_completion"}, 200, JSON),
        (RESPONSES, {"object": "response"}, 200, JSON),
        ("/v1/models", {"object": "list", "data": [{"id": "m"}]}, 200, JSON),
        ("/v1/models/m", {"id": "m", "object": "model"}, 200, JSON),
    ],
)
def test_shapes_are_checked(path: str, body: Any, status: int, kind: str):
    """A body, chunk or error that OpenAI's schema does not know is a breach."""
    needed("openai_openapi.yaml")
    with pytest.raises(SchemaBreach):
        check(path, body, status=status, kind=kind)


def test_the_events_of_responses_are_numbered_and_named():
    """Events of `/v1/responses` have names, begin with `response.created`, and leave no gap."""
    error = {"type": "error", "code": "c", "message": "m", "param": None, "sequence_number": 0}
    good = b"event: error\n" + sse(error)
    check(RESPONSES, good, kind=SSE)
    for bad in (
        sse(error),
        b"event: failed\n" + sse(error),
        b"event: error\n" + sse(error | {"sequence_number": 1}),
        good + good,
        b": ping\n\n",
    ):
        with pytest.raises(SchemaBreach):
            check(RESPONSES, bad, kind=SSE)
