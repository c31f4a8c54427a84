"""Public answers have the keys that clients index, and fit OpenAI's own schema."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proto.errors import ERRORS, ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.chat import AnswerMessage, ChatCompletion, Choice
from proto.openai.error import error_body
from proto.openai.models import ModelInfo, ModelList
from proto.openai.stream import ChatChunk, ChunkChoice, DeltaMessage
from proto.openai.usage import usage_info
from tests.support.checked import spec
from tests.support.reference import needed

USAGE = usage_info(Usage(prompt_tokens=9, completion_tokens=3, cached_tokens=4))


def plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def check(value: object, name: str) -> None:
    needed("openai_openapi.yaml")
    spec.validator(name).validate(plain(value))


def chunk(delta: DeltaMessage, **fields: Any) -> ChatChunk:
    choice = ChunkChoice(index=0, delta=delta, **fields)
    return ChatChunk(id="chatcmpl-1", created=1, model="m", choices=(choice,))


def completion() -> ChatCompletion:
    choice = Choice(index=0, message=AnswerMessage(content="Hi"), finish_reason=FinishReason.STOP)
    return ChatCompletion(id="chatcmpl-1", created=1, model="m", choices=(choice,), usage=USAGE)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (completion(), "CreateChatCompletionResponse"),
        (chunk(DeltaMessage(role="assistant", content="")), "CreateChatCompletionStreamResponse"),
        (chunk(DeltaMessage(content="Hi")), "CreateChatCompletionStreamResponse"),
        (
            chunk(DeltaMessage(), finish_reason=FinishReason.LENGTH),
            "CreateChatCompletionStreamResponse",
        ),
        (
            ChatChunk(id="c", created=1, model="m", choices=(), usage=USAGE),
            "CreateChatCompletionStreamResponse",
        ),
        (
            ModelList(data=(ModelInfo(id="m", created=1, root="m", max_model_len=8),)),
            "ListModelsResponse",
        ),
        (error_body(PdbusError(ErrorCode.INTERNAL)), "ErrorResponse"),
    ],
)
def test_answers_fit_the_schema_of_openai(value: object, name: str):
    """Each answer validates against the public schema of the same name."""
    check(value, name)


def test_usage_adds_up():
    """The total is prompt and answer; cached tokens are a detail of the prompt."""
    assert plain(USAGE) == {
        "prompt_tokens": 9,
        "completion_tokens": 3,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_chunk_always_has_the_finish_reason():
    """`finish_reason` is null until the end, never absent; `usage` is absent unless asked for."""
    interior = plain(chunk(DeltaMessage(content="x")))
    assert interior["choices"][0]["finish_reason"] is None
    assert interior["choices"][0]["delta"] == {"content": "x"}
    assert "usage" not in interior


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_is_nested_and_complete(code: ErrorCode):
    """Each row of the table makes a body with message, type, param and code."""
    body = plain(error_body(PdbusError(code, "detail of the inside", param="p")))
    assert set(body) == {"error"}
    assert body["error"]["type"] == ERRORS[code].kind
    assert body["error"]["code"] == str(code)
    assert body["error"]["param"] == "p"
    shown = ERRORS[code].detail_is_public
    assert (body["error"]["message"] == "detail of the inside") is shown
    assert body["error"]["message"]
