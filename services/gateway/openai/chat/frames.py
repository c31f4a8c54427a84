"""Framing of a streamed chat answer: pure functions of what the model said.

Order: one chunk a choice with the role; chunks with text; one chunk a choice with the finish reason
and an empty delta; where asked for, one chunk with `choices: []` and the usage; `[DONE]`. A stream
that fails has an error event instead of what was still to come, and no finish reason.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from proto.errors import PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.stream import ChatChunk, ChunkChoice, DeltaMessage
from proto.openai.usage import UsageInfo, usage_info
from services.gateway.api import Delta
from services.gateway.openai.frames import DONE, Head, error_frame, frame

__all__ = ["ChatFrames", "answer_id"]

_MARK = "\x00"
_MARK_JSON = b'"\\u0000"'

_encode = msgspec.json.Encoder().encode


def answer_id(head: Head) -> str:
    """Return the public id of a chat answer."""
    return f"chatcmpl-{head.rid}"


class ChatFrames:
    """The frames of one answer; all chunks share id, time and model.

    A text chunk is the same bytes around the text each time, so these are encoded once a choice.
    """

    def __init__(self, head: Head, *, choices: int, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        template = [self._chunk(index, DeltaMessage(content=_MARK)) for index in range(choices)]
        parts = [chunk.partition(_MARK_JSON) for chunk in template]
        self._around = [(before, after) for before, _, after in parts]
        role = DeltaMessage(role="assistant", content="")
        self._opening = b"".join(self._chunk(index, role) for index in range(choices))

    @property
    def opening(self) -> bytes:
        """The first chunk of each choice."""
        return self._opening

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return a chunk with text, if there is any."""
        if not delta.text:
            return b""
        before, after = self._around[index]
        return before + _encode(delta.text) + after

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """Return the finish chunk of a choice."""
        return self._chunk(index, DeltaMessage(), reason)

    def end(self, usage: Usage) -> bytes:
        """Return the usage chunk if the client asked for it, and `[DONE]`."""
        if not self._include_usage:
            return DONE
        return frame(self._whole((), usage_info(usage))) + DONE

    def failure(self, error: PdbusError) -> bytes:
        """Return the event that ends a stream that failed."""
        return error_frame(error)

    def _chunk(self, index: int, delta: DeltaMessage, finish: FinishReason | None = None) -> bytes:
        choice = ChunkChoice(index=index, delta=delta, finish_reason=finish)
        usage: UnsetType | None = None if self._include_usage else UNSET
        return frame(self._whole((choice,), usage))

    def _whole(
        self, choices: tuple[ChunkChoice, ...], usage: UsageInfo | UnsetType | None
    ) -> ChatChunk:
        return ChatChunk(
            id=answer_id(self._head),
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=usage,
        )
