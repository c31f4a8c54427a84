"""The messages of a chat request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from proto.openai.api import Body

__all__ = ["MAX_CALLS", "Message", "SaidFunction", "SaidToolCall", "TextPart"]

MAX_CALLS = 128

_Label = Annotated[str, Meta(max_length=512)]


class TextPart(Body, frozen=True, kw_only=True):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class SaidFunction(Body, frozen=True, kw_only=True):
    """Which function an earlier answer called, and with what."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: str
    """JSON text, as the model wrote it."""


class SaidToolCall(Body, frozen=True, kw_only=True):
    """A tool call of an earlier answer."""

    id: _Label
    type: Literal["function"] = "function"
    function: SaidFunction
    index: int | None = None
    """What clients leave in a call that they put together from a stream; it has no meaning here."""


class Message(Body, frozen=True, kw_only=True):
    """One turn of the conversation.

    The last fields are those that clients send back from an earlier answer; they may only be
    empty.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    tool_call_id: _Label | None = None
    tool_calls: Annotated[list[SaidToolCall], Meta(max_length=MAX_CALLS)] | None = None
    reasoning_content: str | None = None
    """Extension: what the model thought before it said this; templates may show it."""
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = None
