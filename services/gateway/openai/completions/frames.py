"""Framing of a streamed completion: pure functions of what the model said.

Order: where asked for, one chunk a choice with its prompt; chunks with text; one chunk a choice
with the finish reason; where asked for, one chunk with `choices: []` and the usage; `[DONE]`.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from proto.errors import PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.completions import CompletionChunk, CompletionChunkChoice, CompletionLogprobs
from proto.openai.usage import UsageInfo, usage_info
from services.gateway.api import Part
from services.gateway.openai.completions.logprobs import Words
from services.gateway.openai.frames import DONE, Head, error_frame, frame

__all__ = ["CompletionFrames"]

_MARK = "\x00"
_MARK_JSON = b'"\\u0000"'

_encode = msgspec.json.Encoder().encode


class CompletionFrames:
    """The frames of one answer; all chunks share id, time and model.

    Args:
        echoes: what stands before each choice.
        words: of each choice, where log-probabilities are asked for.
        include_usage: whether the client asked for the usage.
    """

    def __init__(
        self, head: Head, *, echoes: list[str], words: list[Words] | None, include_usage: bool
    ) -> None:
        self._head = head
        self._words = words
        self._include_usage = include_usage
        parts = [self._chunk(index, _MARK).partition(_MARK_JSON) for index in range(len(echoes))]
        self._around = [(before, after) for before, _, after in parts]
        self._opening = b"".join(self._text(at, echo) for at, echo in enumerate(echoes) if echo)

    @property
    def opening(self) -> bytes:
        """The prompts, where they are to be echoed."""
        return self._opening

    def delta(self, index: int, delta: Part) -> bytes:
        """Return the chunk of some tokens, if there is anything to tell of them."""
        details = delta.details
        if self._words is not None and details is not None and details.logprobs:
            return self._chunk(index, delta.text, self._words[index].take(details.logprobs))
        return self._text(index, delta.text) if delta.text else b""

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """Return the finish chunk of a choice."""
        return self._chunk(index, "", finish=reason)

    def end(self, usage: Usage) -> bytes:
        """Return the usage chunk if the client asked for it, and `[DONE]`."""
        if not self._include_usage:
            return DONE
        return frame(self._whole((), usage_info(usage))) + DONE

    def failure(self, error: PdbusError) -> bytes:
        """Return the event that ends a stream that failed."""
        return error_frame(error)

    def _text(self, index: int, text: str) -> bytes:
        before, after = self._around[index]
        return before + _encode(text) + after

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None = None,
        finish: FinishReason | None = None,
    ) -> bytes:
        choice = CompletionChunkChoice(
            index=index, text=text, logprobs=logprobs, finish_reason=finish
        )
        return frame(self._whole((choice,), None if self._include_usage else UNSET))

    def _whole(
        self, choices: tuple[CompletionChunkChoice, ...], usage: UsageInfo | UnsetType | None
    ) -> CompletionChunk:
        return CompletionChunk(
            id=f"cmpl-{self._head.rid}",
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=usage,
        )
