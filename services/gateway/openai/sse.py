"""Framing of a streamed chat answer: pure functions of what the model said.

Order: one chunk with the role; chunks with text; one chunk with the finish reason and an empty
delta; where asked for, one chunk with `choices: []` and the usage; `[DONE]`. A stream that fails
has an error event instead of what was still to come, and no finish reason.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from proto.errors import PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.error import error_body
from proto.openai.stream import ChatChunk, ChunkChoice, DeltaMessage
from proto.openai.usage import UsageInfo, usage_info

__all__ = ["DONE", "ChatFrames", "error_frame", "frame"]

DONE = b"data: [DONE]\n\n"

_MARK = "\x00"
_MARK_JSON = b'"\\u0000"'
_END = b"\n\n"

_encode = msgspec.json.Encoder().encode


def frame(value: object) -> bytes:
    """Return one event whose data is a value as JSON, which never holds a line break."""
    return b"data: " + _encode(value) + _END


def error_frame(error: PdbusError) -> bytes:
    """Return the event that ends a stream that failed."""
    return frame(error_body(error))


class ChatFrames:
    """The frames of one answer; all chunks share id, time and model.

    A text chunk is the same bytes around the text each time, so these are encoded once.
    """

    def __init__(self, *, answer_id: str, created: int, model: str, include_usage: bool) -> None:
        self._id = answer_id
        self._created = created
        self._model = model
        self._include_usage = include_usage
        template = self._chunk(DeltaMessage(content=_MARK))
        self._before, _, self._after = template.partition(_MARK_JSON)
        self.opening = self._chunk(DeltaMessage(role="assistant", content=""))
        """The first chunk."""

    def text(self, text: str) -> bytes:
        """Return a chunk with text."""
        return self._before + _encode(text) + self._after

    def end(self, finish: FinishReason, usage: Usage | None) -> bytes:
        """Return the finish chunk, the usage chunk if the client asked for it, and `[DONE]`."""
        frames = self._chunk(DeltaMessage(), finish)
        if self._include_usage and usage is not None:
            frames += self._usage(usage_info(usage))
        return frames + DONE

    def _chunk(self, delta: DeltaMessage, finish: FinishReason | None = None) -> bytes:
        choice = ChunkChoice(index=0, delta=delta, finish_reason=finish)
        usage: UnsetType | None = None if self._include_usage else UNSET
        return frame(self._whole((choice,), usage))

    def _usage(self, usage: UsageInfo) -> bytes:
        return frame(self._whole((), usage))

    def _whole(
        self, choices: tuple[ChunkChoice, ...], usage: UsageInfo | UnsetType | None
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
        )
