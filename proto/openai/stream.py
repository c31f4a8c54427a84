"""The chunks of a streamed chat answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from proto.gateway import FinishReason
from proto.openai.api import Answer
from proto.openai.logprobs import ChoiceLogprobs
from proto.openai.usage import UsageInfo

__all__ = ["ChatChunk", "ChunkChoice", "DeltaFunction", "DeltaMessage", "DeltaToolCall"]


class DeltaFunction(Answer, frozen=True, kw_only=True):
    """What a chunk adds to the function of a tool call."""

    name: str | UnsetType = UNSET
    """With the first piece of the call only."""
    arguments: str = ""


class DeltaToolCall(Answer, frozen=True, kw_only=True):
    """What a chunk adds to one tool call; id, type and name come with its first piece only."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: DeltaFunction


class DeltaMessage(Answer, frozen=True, kw_only=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[DeltaToolCall, ...] | UnsetType = UNSET


class ChunkChoice(Answer, frozen=True, kw_only=True):
    """What a chunk adds to one answer."""

    index: int
    delta: DeltaMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(Answer, frozen=True, kw_only=True):
    """One event of the stream.

    `usage` is left out unless the client asked for it; then it is null until the last chunk.
    """

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    """Unix seconds."""
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: UsageInfo | UnsetType | None = UNSET
