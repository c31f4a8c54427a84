"""The chat endpoint on bare ASGI: streams, whole answers, failures, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from opentelemetry import trace

from libs.telemetry.quiet import QuietTracerProvider
from libs.text.tokenizer import unpack_ids
from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ledger import Mode
from services.gateway.api import Readiness, ServedModel
from tests.unit.services.gateway.rig import (
    CONTEXT,
    MODEL,
    Rig,
    rules,
    then_fail,
    then_hang,
    words,
)

LOST = PdbusError(ErrorCode.DECODE_LOST, "decode-1 is gone")
ENUM = {"stop", "length", "tool_calls", "content_filter"}


async def test_a_whole_answer(rig: Rig):
    """Without `stream` the answer comes as one JSON object with text, finish and usage."""
    reply = await rig.ask()
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    body = reply.json
    assert body["object"] == "chat.completion"
    assert body["id"] == f"chatcmpl-{rig.calls.opened[0].rid}"
    assert body["model"] == MODEL
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
    assert choice["finish_reason"] == "stop"
    prompt = rig.calls.opened[0].prompt_tokens
    assert body["usage"]["total_tokens"] == prompt + 2
    assert body["usage"]["completion_tokens"] == 2


async def test_a_stream(rig: Rig):
    """Role first, then text, then one finish with an empty delta, then `[DONE]`."""
    reply = await rig.ask(stream=True)
    assert reply.status == 200
    *chunks, done = reply.events
    assert done == "[DONE]"
    assert reply.ended
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " world"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert len({(c["id"], c["model"], c["created"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["id"] == f"chatcmpl-{rig.calls.opened[0].rid}"
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_has_the_headers_that_proxies_need(rig: Rig):
    """Content type with charset, no caching, no buffering, no length."""
    headers = (await rig.ask(stream=True)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers


async def test_usage_is_streamed_exactly_when_asked_for(rig: Rig):
    """With `include_usage`: null in each chunk, then one chunk without choices before `[DONE]`."""
    rig.calls.script = words("a", "b", "c", cached=1)
    reply = await rig.ask(stream=True, stream_options={"include_usage": True})
    *chunks, last, done = reply.events
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    prompt = rig.calls.opened[0].prompt_tokens
    assert last["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 3,
        "total_tokens": prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_no_usage_when_declined(rig: Rig):
    """`include_usage: false` is the same as not asking."""
    reply = await rig.ask(stream=True, stream_options={"include_usage": False})
    assert all("usage" not in chunk and chunk["choices"] for chunk in reply.events[:-1])


async def test_the_limit_is_a_finish_reason(rig: Rig):
    """An answer cut by its limit says `length`, in both forms."""
    rig.calls.script = words("a", finish=FinishReason.LENGTH)
    assert (await rig.ask()).json["choices"][0]["finish_reason"] == "length"
    streamed = (await rig.ask(stream=True)).events
    assert streamed[-2]["choices"][0]["finish_reason"] == "length"


async def test_waiting_tokens_share_one_write(rig: Rig):
    """Deltas that are there at once are written at once: opening, text and end in one write."""
    rig.calls.pending = True
    rig.calls.script = words("a", "b", "c", "d")
    reply = await rig.ask(stream=True)
    assert len(reply.writes) == 1
    assert len(reply.events) == 7


async def test_tokens_without_text_are_not_chunks(rig: Rig):
    """Half a character makes no chunk; its other half comes with the next token."""
    rig.calls.script = words("", "é", "", "")
    deltas = [c["choices"][0]["delta"] for c in (await rig.ask(stream=True)).events[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "é"}, {}]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_workers_are_named(rig: Rig, stream: bool):
    """Answers say which workers made them, in which mode and attempt."""
    headers = (await rig.ask(stream=stream)).headers
    assert headers["x-pdbus-prefill"] == "prefill-1"
    assert headers["x-pdbus-decode"] == "decode-1"
    assert headers["x-pdbus-mode"] == "disaggregated"
    assert headers["x-pdbus-attempt"] == "1"


async def test_the_workers_can_be_hidden(rig: Rig):
    """A switch takes these headers away."""
    rig.rules = rules(expose_placement=False)
    headers = (await rig.ask()).headers
    assert not [name for name in headers if name.startswith("x-pdbus")]


async def test_the_prompt_is_templated_and_tokenized(rig: Rig):
    """The call carries packed ids of the rendered conversation, and their number."""
    await rig.ask(messages=[{"role": "user", "content": "Hi"}])
    call = rig.calls.opened[0]
    prompt = rig.text.tokenizer.decode(call.input_ids)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert call.prompt_tokens == len(unpack_ids(call.input_ids))


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
async def test_parts_are_the_same_as_a_string(rig: Rig, role: str):
    """For each role, text in parts makes the same prompt as the parts joined in order."""
    extra = {"tool_call_id": "c1"} if role == "tool" else {}
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    for content in ("one two", parts):
        await rig.ask(messages=[{"role": role, "content": content, **extra}])
    first, second = rig.calls.opened
    assert first.input_ids == second.input_ids


async def test_an_answer_can_be_sent_back(rig: Rig):
    """The message of an answer is valid as a turn of the next request."""
    message = (await rig.ask()).json["choices"][0]["message"]
    user = {"role": "user", "content": "And?"}
    reply = await rig.ask(messages=[user, message | {"tool_calls": [], "audio": None}, user])
    assert reply.status == 200


async def test_equal_requests_have_equal_digests(rig: Rig):
    """The digest names what is asked, however the JSON is written, and nothing else."""
    await rig.ask(temperature=0.5, max_tokens=5)
    await rig.ask(
        {
            "max_tokens": 5,
            "temperature": 0.5,
            "messages": [{"content": "Hi", "role": "user"}],
            "model": MODEL,
            "user": "u",
        }
    )
    await rig.ask(temperature=0.6, max_tokens=5)
    first, second, third = (call.digest for call in rig.calls.opened)
    assert first == second != third


async def test_sampling_is_passed_on(rig: Rig):
    """Every sampling field reaches the call; the others keep their defaults."""
    given = {
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.125,
        "ignore_eos": True,
        "frequency_penalty": 1.5,
        "presence_penalty": -1.5,
        "repetition_penalty": 1.25,
    }
    await rig.ask(**given, stop="END", stop_token_ids=[3], max_completion_tokens=9)
    await rig.ask()
    sampling, plain = (call.sampling for call in rig.calls.opened)
    assert {name: getattr(sampling, name) for name in given} == given
    assert sampling.stop == ("END",)
    assert sampling.stop_token_ids == (3,)
    assert sampling.max_tokens == 9
    assert (plain.temperature, plain.top_p, plain.max_tokens) == (1.0, 1.0, 64)


async def test_the_newer_limit_wins(rig: Rig):
    """`max_completion_tokens` goes before `max_tokens`; either alone is honoured."""
    for fields in ({"max_tokens": 7}, {"max_completion_tokens": 7, "max_tokens": 50}):
        await rig.ask(**fields)
    assert [call.sampling.max_tokens for call in rig.calls.opened] == [7, 7]


async def test_without_a_limit_the_context_is_one(rig: Rig):
    """The default limit never exceeds what the context has left."""
    await rig.ask(messages=[{"role": "user", "content": "x" * 200}])
    call = rig.calls.opened[0]
    assert call.prompt_tokens + call.sampling.max_tokens == CONTEXT


@pytest.mark.parametrize(
    ("text", "fields"),
    [("x" * 300, {}), ("x" * 200, {"max_tokens": 100}), ("x", {"max_tokens": 999})],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_does_not_fit_is_refused(rig: Rig, text: str, fields: dict, stream: bool):
    """A request beyond the context is a 400 with both numbers, before anything is opened."""
    messages = [{"role": "user", "content": text}]
    reply = await rig.ask(messages=messages, stream=stream, **fields)
    assert reply.status == 400
    assert reply.error["code"] == "context_length_exceeded"
    assert reply.error["type"] == "invalid_request_error"
    assert str(CONTEXT) in reply.error["message"]
    assert rig.calls.opened == []


async def test_the_workers_context_counts(rig: Rig):
    """Workers that hold less than the model could are the limit."""
    rig.fleet.served = (ServedModel(MODEL, 50),)
    reply = await rig.ask(max_tokens=40)
    assert reply.error["code"] == "context_length_exceeded"
    assert "50 tokens" in reply.error["message"]


async def test_an_unknown_model_is_a_404(rig: Rig):
    """A model that nobody serves is not found, and the field is named."""
    reply = await rig.ask(model="nope")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert reply.error["param"] == "model"


async def test_a_known_model_without_workers_is_a_503(rig: Rig):
    """A model whose workers are away may come back: the client is told to try again."""
    rig.fleet.served = ()
    reply = await rig.ask()
    assert (reply.status, reply.error["code"]) == (503, "no_worker")
    assert reply.headers["retry-after"] == "1"


async def test_another_tokenizer_is_never_used(rig: Rig):
    """Workers whose tokenizer differs from ours would misread the ids: they do not count."""
    rig.fleet.served = (ServedModel(MODEL, 0, "sha256:other"),)
    assert (await rig.ask()).error["code"] == "no_worker"
    rig.fleet.served = (ServedModel(MODEL, 0, rig.text.digest),)
    assert (await rig.ask()).status == 200


@pytest.mark.parametrize("code", [ErrorCode.STARTING, ErrorCode.DRAINING, ErrorCode.NO_ROUTER])
async def test_nothing_is_taken_before_the_system_is_ready(rig: Rig, code: ErrorCode):
    """Until the system is ready, and when it ends, requests get a 503 with a time to come back."""
    rig.fleet.state = Readiness(ok=False, reason="loading", code=code)
    reply = await rig.ask()
    assert (reply.status, reply.error["code"]) == (503, str(code))
    assert int(reply.headers["retry-after-ms"]) > 0
    assert reply.headers["x-should-retry"] == "true"
    assert rig.calls.opened == []


async def test_the_mode_can_be_asked_for(rig: Rig):
    """The header `x-pdbus-mode` chooses how the request is computed; nonsense is refused."""
    for value in ("aggregated", "disaggregated", "auto"):
        await rig.ask(headers={"x-pdbus-mode": value})
    modes = [call.mode for call in rig.calls.opened]
    assert modes == [Mode.AGGREGATED, Mode.DISAGGREGATED, None]
    reply = await rig.ask(headers={"x-pdbus-mode": "fast"})
    assert (reply.status, reply.error["param"]) == (400, "x-pdbus-mode")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (PdbusError(ErrorCode.SATURATED, retry_after_s=2.5), 429, "true"),
        (PdbusError(ErrorCode.NO_WORKER), 503, "true"),
        (PdbusError(ErrorCode.DEADLINE), 504, "true"),
        (PdbusError(ErrorCode.ENGINE_ERROR, "stack trace"), 500, "false"),
    ],
)
async def test_a_refusal_is_plain_http(
    rig: Rig, stream: bool, error: PdbusError, status: int, retry: str
):
    """What fails before the first token is an HTTP error in one piece, streamed or not."""
    rig.calls.refuse = error
    reply = await rig.ask(stream=stream)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert reply.error["code"] == str(error.code)
    assert reply.error["message"] == error.spec.text
    assert reply.headers["x-should-retry"] == retry
    if error.retry_after_s is not None:
        assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("3", "2500")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_the_first_token_is_plain_http(rig: Rig, stream: bool):
    """A lost worker without any token given is a 502, not a stream with an error in it."""
    rig.calls.script = then_fail(LOST)
    reply = await rig.ask(stream=stream)
    assert (reply.status, reply.error["code"]) == (502, "decode_lost")


@pytest.mark.parametrize("pending", [True, False])
async def test_a_failure_in_mid_stream_is_an_event(rig: Rig, pending: bool):
    """All text that came is given, then one error event; no finish, no `[DONE]`, a clean end."""
    rig.calls.script = then_fail(LOST, "Hello", " wor")
    rig.calls.pending = pending
    reply = await rig.ask(stream=True)
    assert reply.status == 200
    assert reply.ended
    *chunks, error = reply.events
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == "Hello wor"
    assert all(c["choices"][0]["finish_reason"] is None for c in chunks)
    assert error == {
        "error": {
            "message": LOST.spec.text,
            "type": "server_error",
            "param": None,
            "code": "decode_lost",
        }
    }


async def test_a_failure_after_some_tokens_is_an_error_without_stream(rig: Rig):
    """A whole answer is whole or an error: what came is not passed off as the answer."""
    rig.calls.script = then_fail(LOST, "Hello")
    reply = await rig.ask()
    assert (reply.status, reply.error["code"]) == (502, "decode_lost")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_without_finish_is_an_error(rig: Rig, stream: bool):
    """An answer that just stops is never given as complete."""
    rig.calls.script = then_fail(PdbusError(ErrorCode.STREAM_GAP), "x")
    reply = await rig.ask(stream=stream)
    failure = reply.events[-1] if stream else reply.json
    assert failure["error"]["code"] == "stream_gap"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_waiting_for_a_place(rig: Rig, stream: bool):
    """Leaving before there is a call cancels its opening, with and without stream."""
    rig.calls.hang_in_open = True
    visit = rig.post(stream=stream)
    asyncio.get_running_loop().call_later(0.02, visit.leave)
    reply = await visit.run()
    assert reply.status == 0
    assert rig.calls.cancelled_opens == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("texts", [(), ("Hello",)])
async def test_a_client_that_leaves_cancels_its_call(rig: Rig, stream: bool, texts: tuple):
    """Leaving while the first or a later token is awaited cancels once, with and without stream."""
    rig.calls.script = then_hang(*texts)
    visit = rig.post(stream=stream)
    running = asyncio.ensure_future(visit.run())
    while not rig.calls.lives:
        await asyncio.sleep(0)
    await rig.calls.lives[0].hanging.wait()
    visit.leave()
    reply = await running
    assert rig.calls.lives[0].cancels == ["client_gone"]
    assert b"[DONE]" not in reply.body
    assert b'finish_reason":"' not in reply.body


async def test_a_complete_answer_is_not_cancelled(rig: Rig):
    """The end of the connection right after the answer is no cancel."""
    for stream in (True, False):
        reply = await rig.ask(stream=stream)
        assert reply.ended
    assert [live.cancels for live in rig.calls.lives] == [[], []]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_that_stops_says_so(rig: Rig, stream: bool):
    """A request cut by the end of the process gets an error, and its call is given up."""
    rig.calls.script = then_hang("Hello")
    visit = rig.post(stream=stream)
    running = asyncio.ensure_future(visit.run())
    while not rig.calls.lives:
        await asyncio.sleep(0)
    await rig.calls.lives[0].hanging.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    failure = visit.reply.events[-1] if stream else visit.reply.json
    assert failure["error"]["code"] == "draining"
    assert len(rig.calls.lives[0].cancels) == 1
    assert visit.reply.ended


async def test_a_silent_stream_gets_comments(rig: Rig):
    """While the first token is awaited, proxies see a comment after the opening chunk."""
    rig.rules = rules(ping_s=0.03)
    rig.calls.script = then_hang()
    visit = rig.post(stream=True)
    running = asyncio.ensure_future(visit.run())
    while visit.reply.body.count(b": ping\n\n") < 2:
        await asyncio.sleep(0.01)
    visit.leave()
    reply = await running
    assert reply.body.startswith(b"data: ")
    (opening,) = reply.events
    assert opening["choices"][0]["delta"]["role"] == "assistant"


async def test_a_client_that_does_not_read_is_given_up(rig: Rig):
    """One write that waits too long ends the request and drops the connection."""
    rig.rules = rules(slow_client_s=0.05)
    dropped: list[bool] = []
    visit = rig.post(stream=True)
    visit.scope["pdbus.abort"] = lambda: dropped.append(True)
    visit.reading.clear()
    await visit.run()
    assert rig.calls.lives[0].cancels == ["slow_client"]
    assert dropped == [True]


async def test_the_last_write_is_bounded_too(rig: Rig):
    """A client that stops reading at the very end does not keep its request for ever."""
    rig.rules = rules(slow_client_s=0.05)
    visit = rig.post(stream=True)
    send = visit._send

    async def stall_at_the_end(message: dict) -> None:
        if not message.get("more_body", True):
            visit.reading.clear()
        await send(message)

    visit._send = stall_at_the_end
    await visit.run()
    assert rig.calls.lives[0].cancels == []
    assert not visit.reply.ended


async def test_an_unexpected_fault_gives_the_call_up(rig: Rig):
    """A bug on the way out does not leave the engines at work."""

    async def broken(_message: object) -> None:
        raise OSError("the connection is broken")

    visit = rig.post(stream=True)
    visit._send = broken
    with pytest.raises((OSError, ExceptionGroup)):
        await visit.run()
    assert rig.calls.lives[0].cancels == ["not_delivered"]


async def test_requests_are_counted(rig: Rig, metric):
    """Each request counts once, by its outcome; names from outside never become labels."""
    common = {"endpoint": "/v1/chat/completions"}
    ok = {**common, "model_name": MODEL, "outcome": "ok", "error_code": "", "streaming": False}
    bad = {
        **common,
        "model_name": "other",
        "outcome": "refused",
        "error_code": "model_not_found",
        "streaming": False,
    }
    before = [metric("pdbus.gateway.requests", **labels) for labels in (ok, bad)]
    await rig.ask()
    await rig.ask(model="made-up-name")
    after = [metric("pdbus.gateway.requests", **labels) for labels in (ok, bad)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]


async def test_one_span_tells_the_request(rig: Rig, spans):
    """The HTTP span joins the caller's trace and carries the GenAI facts, but no text."""
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    await rig.ask(headers={"traceparent": parent}, temperature=0.5)
    (span,) = [s for s in spans.get_finished_spans() if s.name.startswith("POST ")]
    assert span.name == "POST /v1/chat/completions"
    assert f"{span.context.trace_id:032x}" == "a" * 32
    assert f"{span.parent.span_id:016x}" == "b" * 16
    facts = span.attributes
    assert facts["gen_ai.request.model"] == MODEL
    assert facts["gen_ai.request.temperature"] == 0.5
    assert facts["gen_ai.usage.output_tokens"] == 2
    assert facts["http.response.status_code"] == 200
    assert not [value for value in facts.values() if "Hello" in str(value)]


async def test_a_failed_request_marks_its_span(rig: Rig, spans):
    """A server's failure sets status and type of the span; a client's mistake does not."""
    rig.calls.refuse = PdbusError(ErrorCode.NO_WORKER)
    await rig.ask()
    rig.calls.refuse = None
    await rig.ask(temperature=9)
    failed, refused = [s for s in spans.get_finished_spans() if s.name.startswith("POST ")]
    assert failed.attributes["error.type"] == "no_worker"
    assert not failed.status.is_ok
    assert refused.status.is_unset


async def test_one_log_line_a_request(rig: Rig, capsys):
    """The line tells ids, outcome, times and tokens, and never text."""
    await rig.ask(
        messages=[{"role": "user", "content": "my secret"}], headers={"x-request-id": "r"}
    )
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "request served" in line]
    assert len(lines) == 1
    for fact in ("outcome", "completion_tokens", "first_token_s", "client_request_id"):
        assert fact in lines[0]
    assert "secret" not in out
    assert "Hello" not in out


async def test_ids_do_not_collide(rig: Rig):
    """Two requests with the same `x-request-id` are two requests."""
    replies = [await rig.ask(headers={"x-request-id": "same"}) for _ in range(2)]
    assert [reply.headers["x-request-id"] for reply in replies] == ["same", "same"]
    assert replies[0].json["id"] != replies[1].json["id"]
    assert json.dumps(replies[0].json)


async def test_a_prompt_that_certainly_fits_is_encoded_later(rig: Rig, monkeypatch):
    """A short one is left to whoever carries the call out; near the limit nothing is left open."""
    # A span would tell of its tokens.
    quiet = QuietTracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: quiet)
    await rig.ask(max_tokens=4)
    await rig.ask(max_tokens=CONTEXT - 60)
    early, late = (call.prompt for call in rig.calls.opened)
    assert early.ids == late.ids
    assert rig.calls.known == [False, True]


async def test_a_prompt_that_cannot_fit_is_not_encoded(rig: Rig, monkeypatch):
    """Megabytes are refused by their length, before seconds are spent on encoding them."""
    rig.rules = rules(max_body_bytes=4 << 20)
    monkeypatch.setattr(type(rig.text.tokenizer), "encode", None)
    reply = await rig.ask(messages=[{"role": "user", "content": "x" * 2_000_000}])
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
    assert str(CONTEXT) in reply.error["message"]


async def test_a_client_that_leaves_while_its_prompt_is_encoded(rig: Rig, monkeypatch):
    """Long prompts are encoded off the loop, and a client that leaves meanwhile is noticed."""
    encode = type(rig.text.tokenizer).encode
    go_on = threading.Event()

    def slowly(self, text: str, *, add_special: bool) -> bytes:
        assert threading.current_thread() is not threading.main_thread()
        go_on.wait(5)
        return encode(self, text, add_special=add_special)

    monkeypatch.setattr(type(rig.text.tokenizer), "encode", slowly)
    monkeypatch.setattr(type(rig.text.tokenizer), "fewest_tokens", lambda _self, _text: 0)
    visit = rig.post(messages=[{"role": "user", "content": "x" * 20_000}])
    asyncio.get_running_loop().call_later(0.02, visit.leave)
    reply = await visit.run()
    go_on.set()
    assert reply.status == 0
    assert rig.calls.opened == []
