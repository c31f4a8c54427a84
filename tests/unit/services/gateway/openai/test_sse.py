"""Framing is pure: the same chunks, whatever the text and however it was cut."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ids import RequestId
from proto.ledger import Usage
from proto.openai.stream import ChatChunk, ChunkChoice, DeltaMessage
from services.gateway.api import Delta
from services.gateway.openai.chat.frames import ChatFrames, Wording
from services.gateway.openai.frames import DONE, Head, error_frame, frame
from tests.unit.services.gateway.rig import events_of

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
"""All text that can cross the bus: no lone surrogates."""
models = st.text('abc-./_0"\x00,:', min_size=1, max_size=20)


def frames(model: str = "m", *, include_usage: bool = False) -> ChatFrames:
    head = Head(RequestId("1"), 5, model)
    return ChatFrames(head, Wording(include_usage=include_usage))


def said(made: ChatFrames, text: str) -> bytes:
    return made.delta(0, Delta(b"\0\0\0\0", text))


@settings(deadline=None)
@given(texts, models, st.booleans())
def test_text_chunks_equal_the_typed_ones(text: str, model: str, include_usage: bool):
    """The fast way gives byte for byte what encoding the typed chunk gives."""
    choice = ChunkChoice(index=0, delta=DeltaMessage(content=text))
    usage = {"usage": None} if include_usage else {}
    chunk = ChatChunk(id="chatcmpl-1", created=5, model=model, choices=(choice,), **usage)
    assert said(frames(model, include_usage=include_usage), text) == frame(chunk)


@settings(deadline=None)
@given(models, st.sampled_from(FinishReason), st.booleans())
def test_first_and_last_chunks_equal_the_typed_ones(
    model: str, finish: FinishReason, include_usage: bool
):
    """So do the chunks that each answer begins and ends with."""
    usage = {"usage": None} if include_usage else {}
    role = ChunkChoice(index=0, delta=DeltaMessage(role="assistant", content=""))
    ended = ChunkChoice(index=0, delta=DeltaMessage(), finish_reason=finish)
    made = frames(model, include_usage=include_usage)
    for choice, chunk in ((role, made.opening), (ended, made.finish(0, finish))):
        whole = ChatChunk(id="chatcmpl-1", created=5, model=model, choices=(choice,), **usage)
        assert chunk == frame(whole)


@settings(deadline=None)
@given(st.lists(texts), st.sampled_from(FinishReason), st.booleans())
def test_a_stream_can_be_put_together_again(
    pieces: list[str], finish: FinishReason, include_usage: bool
):
    """Role once, all text in order, one finish, usage only if asked for, `[DONE]` last."""
    made = frames(include_usage=include_usage)
    usage = Usage(prompt_tokens=3, completion_tokens=len(pieces))
    stream = made.opening + b"".join(said(made, piece) for piece in pieces)
    stream += made.finish(0, finish) + made.end(usage)
    *chunks, done = events_of(stream)
    assert done == "[DONE]"
    assert stream.endswith(DONE)
    if include_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == 3 + len(pieces)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["delta"].get("content", "") for c in choices) == "".join(pieces)
    assert [c["finish_reason"] for c in choices] == [None] * (len(pieces) + 1) + [str(finish)]
    assert choices[-1]["delta"] == {}
    assert all(("usage" in chunk) is include_usage for chunk in chunks)


@settings(deadline=None)
@given(texts)
def test_every_event_is_one_line(text: str):
    """No text can end an event early or begin another: its line breaks are escaped."""
    event = said(frames(), text)
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert b"\n" not in event[:-2]
    assert b"\r" not in event


@settings(deadline=None)
@given(st.lists(texts, min_size=1, max_size=5))
def test_every_prefix_in_events_is_valid_utf8(pieces: list[str]):
    """A reader that decodes event by event never meets half a character."""
    made = frames()
    for piece in pieces:
        said(made, piece).decode("utf-8")


@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_error_event_is_one_line_of_json(code: ErrorCode):
    """The event holds the nested error and nothing that looks like an end."""
    event = error_frame(PdbusError(code, "two\nlines"))
    (found,) = events_of(event)
    assert found["error"]["code"] == str(code)
    assert b"DONE" not in event


def test_ids_time_and_model_are_constant():
    """All chunks of a stream say the same about it."""
    made = frames(include_usage=True)
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    stream = made.opening + said(made, "x") + made.finish(0, FinishReason.STOP) + made.end(usage)
    chunks = events_of(stream)[:-1]
    common = [{k: c[k] for k in ("id", "object", "created", "model")} for c in chunks]
    wanted = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "m",
    }
    assert common == [wanted] * 4
    assert json.loads(msgspec.json.encode(wanted)) == wanted
