"""`POST /v1/chat/completions`: the request, and the answer that comes in one piece."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from proto.gateway import FinishReason
from proto.openai.api import Answer, Body
from proto.openai.usage import UsageInfo

__all__ = [
    "MAX_MESSAGES",
    "MAX_STOPS",
    "AnswerMessage",
    "ChatCompletion",
    "ChatRequest",
    "Choice",
    "Message",
    "StreamOptions",
    "TextPart",
]

MAX_MESSAGES = 4096
MAX_STOPS = 4

_Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
_Stop = Annotated[str, Meta(min_length=1, max_length=1024)]
_TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
_Limit = Annotated[int, Meta(ge=1, lt=2**31)]
_Label = Annotated[str, Meta(max_length=512)]


class TextPart(Body, frozen=True, kw_only=True):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class Message(Body, frozen=True, kw_only=True):
    """One turn of the conversation.

    The last fields are those that clients send back from an earlier answer; they may only be
    empty.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    tool_call_id: _Label | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[Any] | None = None
    annotations: list[Any] | None = None


class StreamOptions(Body, frozen=True, kw_only=True):
    """What a stream carries beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(Body, frozen=True, kw_only=True):
    """The fields that are carried out; `services.gateway.openai.fields` tells of all others.

    None means "not given" everywhere.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: _Limit | None = None
    max_completion_tokens: _Limit | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=2.0)] | None = None
    stop_token_ids: Annotated[list[_TokenId], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None


class AnswerMessage(Answer, frozen=True, kw_only=True):
    """The turn that the model adds."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None


class Choice(Answer, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: None = None
    finish_reason: FinishReason


class ChatCompletion(Answer, frozen=True, kw_only=True):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    """Unix seconds."""
    model: str
    choices: tuple[Choice, ...]
    usage: UsageInfo
