"""The events that `/v1/responses` streams; each has the name of its `type`."""

from __future__ import annotations

from typing import Any

from proto.openai.api import Answer
from proto.openai.error import ErrorInfo
from proto.openai.responses.answer import Item, OutputText, ReasoningText, ResponseBody

__all__ = [
    "EVENTS",
    "ArgumentsDelta",
    "ArgumentsDone",
    "Completed",
    "Created",
    "Failed",
    "InProgress",
    "Incomplete",
    "ItemAdded",
    "ItemDone",
    "PartAdded",
    "PartDone",
    "ReasoningDelta",
    "ReasoningDone",
    "TextDelta",
    "TextDone",
]


class _Event(Answer, frozen=True, kw_only=True, tag_field="type"):
    """What all events have."""

    sequence_number: int
    """From 0, without gaps."""


class Created(_Event, frozen=True, kw_only=True, tag="response.created"):
    """The first event."""

    response: ResponseBody


class InProgress(_Event, frozen=True, kw_only=True, tag="response.in_progress"):
    """The model is about to answer."""

    response: ResponseBody


class Completed(_Event, frozen=True, kw_only=True, tag="response.completed"):
    """The last event of a whole answer."""

    response: ResponseBody


class Incomplete(_Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """The last event of an answer that was cut."""

    response: ResponseBody


class Failed(_Event, frozen=True, kw_only=True, tag="error"):
    """The last event of an answer that failed: OpenAI's own, and the error that SDKs raise."""

    code: str | None
    message: str
    param: str | None
    error: ErrorInfo


class ItemAdded(_Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """Another item of the output begins."""

    output_index: int
    item: Item


class ItemDone(_Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item of the output is whole."""

    output_index: int
    item: Item


class _Part(_Event, frozen=True, kw_only=True):
    """An event about one part of a message or of reasoning."""

    item_id: str
    output_index: int
    content_index: int = 0


class PartAdded(_Part, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A part begins."""

    part: OutputText | ReasoningText


class PartDone(_Part, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A part is whole."""

    part: OutputText | ReasoningText


class TextDelta(_Part, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of the text."""

    delta: str
    logprobs: tuple[Any, ...] = ()


class TextDone(_Part, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: tuple[Any, ...] = ()


class ReasoningDelta(_Part, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More of the reasoning."""

    delta: str


class ReasoningDone(_Part, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The whole reasoning."""

    text: str


class ArgumentsDelta(
    _Event, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of a call's arguments."""

    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(_Event, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a call."""

    item_id: str
    output_index: int
    name: str
    arguments: str


EVENTS: tuple[type[Answer], ...] = (
    Created,
    InProgress,
    ItemAdded,
    PartAdded,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
    ArgumentsDelta,
    ArgumentsDone,
    PartDone,
    ItemDone,
    Completed,
    Incomplete,
    Failed,
)
"""All events, in the order in which they come."""
