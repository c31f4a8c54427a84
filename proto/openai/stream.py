"""The chunks of a streamed chat answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from proto.gateway import FinishReason
from proto.openai.api import Answer
from proto.openai.usage import UsageInfo

__all__ = ["ChatChunk", "ChunkChoice", "DeltaMessage"]


class DeltaMessage(Answer, frozen=True, kw_only=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Answer, frozen=True, kw_only=True):
    """What a chunk adds to one answer."""

    index: int
    delta: DeltaMessage
    logprobs: None = None
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
