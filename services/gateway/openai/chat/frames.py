"""Framing of a streamed chat answer: pure functions of what the model said.

Order: one chunk a choice with the role; chunks with text, reasoning or tool calls; one chunk a
choice with the finish reason and an empty delta; where asked for, one chunk with `choices: []` and
the usage; `[DONE]`. A stream that fails has an error event instead of what was still to come, and
no finish reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec
from msgspec import UNSET, UnsetType

from libs.text import Tokenizer
from proto.errors import PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.logprobs import ChoiceLogprobs
from proto.openai.stream import ChatChunk, ChunkChoice, DeltaFunction, DeltaMessage, DeltaToolCall
from proto.openai.usage import UsageInfo, usage_info
from proto.output import CallDelta, Details
from services.gateway.api import Part
from services.gateway.openai.chat.logprobs import token_infos
from services.gateway.openai.frames import DONE, Head, error_frame, frame

__all__ = ["ChatFrames", "Wording", "answer_id"]

_MARK = "\x00"
_MARK_JSON = b'"\\u0000"'
_NO_TIME = b'"created":0,'
_TEXT = DeltaMessage(content=_MARK)
_ROLE = DeltaMessage(role="assistant", content="")
_NOTHING = DeltaMessage()

_encode = msgspec.json.Encoder().encode


def answer_id(head: Head) -> str:
    """Return the public id of a chat answer."""
    return f"chatcmpl-{head.rid}"


class Wording(msgspec.Struct, frozen=True):
    """What the chunks of an answer carry."""

    choices: int = 1
    include_usage: bool = False
    tokenizer: Tokenizer | None = None
    """Words the log-probabilities, where they are asked for."""
    one_call: bool = False
    """Only the first tool call of each choice is given."""


class ChatFrames:
    """The frames of one answer; all chunks share id, time and model.

    A text chunk is the same bytes around the text each time, so these are made once a choice.
    """

    def __init__(self, head: Head, wording: Wording) -> None:
        self._head = head
        self._wording = wording
        self._id = _encode(answer_id(head))
        self._created = b"%d" % head.created
        indexes = range(wording.choices)
        template = [self._usual(index, _TEXT) for index in indexes]
        parts = [chunk.rpartition(_MARK_JSON) for chunk in template]
        self._around = [(before, after) for before, _, after in parts]
        self._opening = b"".join([self._usual(index, _ROLE) for index in indexes])

    @property
    def opening(self) -> bytes:
        """The first chunk of each choice."""
        return self._opening

    def delta(self, index: int, delta: Part) -> bytes:
        """Return the chunk of some tokens, if there is anything to tell of them."""
        if delta.details is not None:
            return self._detailed(index, delta.text, delta.details)
        if not delta.text:
            return b""
        before, after = self._around[index]
        return before + _encode(delta.text) + after

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """Return the finish chunk of a choice."""
        return self._usual(index, _NOTHING, reason)

    def end(self, usage: Usage) -> bytes:
        """Return the usage chunk if the client asked for it, and `[DONE]`."""
        if not self._wording.include_usage:
            return DONE
        return frame(self._whole((), usage_info(usage))) + DONE

    def failure(self, error: PdbusError) -> bytes:
        """Return the event that ends a stream that failed."""
        return error_frame(error)

    def _detailed(self, index: int, text: str, details: Details) -> bytes:
        logprobs = self._logprobs(details)
        calls = self._calls(details.calls)
        if not (text or details.reasoning or calls or logprobs):
            return b""
        # Tokens that say nothing yet have log-probabilities all the same: their text is empty.
        bare = not (details.reasoning or calls)
        message = DeltaMessage(
            content=text if text or bare else UNSET,
            reasoning_content=details.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        return self._chunk(index, message, logprobs=logprobs)

    def _logprobs(self, details: Details) -> ChoiceLogprobs | None:
        tokenizer = self._wording.tokenizer
        if tokenizer is None or not details.logprobs:
            return None
        return ChoiceLogprobs(content=token_infos(tokenizer, details.logprobs))

    def _calls(self, pieces: Sequence[CallDelta]) -> tuple[DeltaToolCall, ...]:
        one = self._wording.one_call
        return tuple(_call(piece) for piece in _joined(pieces) if not (one and piece.index))

    def _usual(self, index: int, delta: DeltaMessage, finish: FinishReason | None = None) -> bytes:
        """Return a chunk that each answer has, but for its id and time."""
        usage = self._wording.include_usage
        start, middle, rest = _outline(self._head.model, index, delta, finish, usage=usage)
        return b"".join((start, self._id, middle, self._created, rest))

    def _chunk(
        self,
        index: int,
        delta: DeltaMessage,
        finish: FinishReason | None = None,
        logprobs: ChoiceLogprobs | None = None,
    ) -> bytes:
        choice = ChunkChoice(index=index, delta=delta, finish_reason=finish, logprobs=logprobs)
        usage: UnsetType | None = None if self._wording.include_usage else UNSET
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


@lru_cache(maxsize=1024)
def _outline(
    model: str, index: int, delta: DeltaMessage, finish: FinishReason | None, *, usage: bool
) -> tuple[bytes, bytes, bytes]:
    """Return what stands around the id and the time of a chunk."""
    choice = ChunkChoice(index=index, delta=delta, finish_reason=finish, logprobs=None)
    chunk = ChatChunk(
        id=_MARK,
        created=0,
        model=model,
        choices=(choice,),
        usage=None if usage else UNSET,
    )
    start, _, rest = frame(chunk).partition(_MARK_JSON)
    middle, time, rest = rest.partition(_NO_TIME)
    return start, middle + time[:-2], time[-1:] + rest


def _joined(pieces: Sequence[CallDelta]) -> Iterator[CallDelta]:
    """Yield one piece a call: clients take each entry of a chunk for a call of its own."""
    found: dict[int, CallDelta] = {}
    for piece in pieces:
        before = found.get(piece.index)
        found[piece.index] = (
            piece
            if before is None
            else msgspec.structs.replace(before, arguments=before.arguments + piece.arguments)
        )
    yield from found.values()


def _call(piece: CallDelta) -> DeltaToolCall:
    """Return a piece of a call; only its first has a name."""
    first = bool(piece.name)
    return DeltaToolCall(
        index=piece.index,
        id=piece.id if first else UNSET,
        type="function" if first else UNSET,
        function=DeltaFunction(name=piece.name if first else UNSET, arguments=piece.arguments),
    )
