"""The events of a streamed answer of `/v1/responses`.

Order: `created`, `in_progress`; of each item `output_item.added`, its parts and their deltas,
`output_item.done`; `completed`, or `incomplete` where the answer was cut. One that fails has an
`error` event instead of what was still to come. Reasoning comes before the message, calls after it;
a call is open until the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.api import Answer
from proto.openai.error import error_body
from proto.openai.responses import events
from proto.openai.responses.answer import Item, ItemStatus, OutputText, ReasoningText
from proto.output import CallDelta
from services.gateway.api import Part
from services.gateway.openai.answers.said import SaidCall
from services.gateway.openai.responses.wording import Wording

__all__ = ["ResponseFrames"]

_MESSAGE, _REASONING = "message", "reasoning"

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Open:
    """The item that is being said."""

    what: str | int
    """`message`, `reasoning`, or the index of a call."""
    place: int
    id: str
    said: SaidCall
    """Text and reasoning are its arguments."""


class ResponseFrames:
    """Implements `Frames` for one answer; there is only one choice.

    Args:
        one_call: whether only the first call is given.
    """

    def __init__(self, wording: Wording, *, one_call: bool = False) -> None:
        self._wording = wording
        self._one_call = one_call
        self._number = 0
        self._items: list[Item] = []
        self._item: _Open | None = None
        self._finish: FinishReason | None = None
        self._opening = self._event(events.Created, response=wording.begun())
        self._opening += self._event(events.InProgress, response=wording.begun())
        self._opened = False

    @property
    def opening(self) -> bytes:
        """The first events."""
        self._opened = True
        return self._opening

    def delta(self, index: int, delta: Part) -> bytes:
        """Return the events for some tokens.

        Raises:
            PdbusError: internal, if a call goes on after the next one began.
        """
        del index
        found = b""
        details = delta.details
        if details is not None and details.reasoning:
            found += self._reasoning(details.reasoning)
        if delta.text:
            found += self._text(delta.text)
        for piece in details.calls if details is not None else ():
            if not (self._one_call and piece.index):
                found += self._call(piece)
        return found

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """Return the events that end the last item."""
        del index
        self._finish = reason
        found = b"" if self._items or self._item else self._begin(_MESSAGE)
        return found + self._close("incomplete" if reason is FinishReason.LENGTH else "completed")

    def end(self, usage: Usage) -> bytes:
        """Return the event that ends the answer.

        Raises:
            PdbusError: internal, if there was no finish.
        """
        if self._finish is None:
            raise PdbusError(ErrorCode.INTERNAL, "the answer ended without a finish")
        body = self._wording.ended(self._items, self._finish, usage)
        kind = events.Completed if body.status == "completed" else events.Incomplete
        return self._event(kind, response=body)

    def failure(self, error: PdbusError) -> bytes:
        """Return the event that ends an answer that failed after its first byte."""
        body = error_body(error).error
        failed = self._event(
            events.Failed, code=body.code, message=body.message, param=body.param, error=body
        )
        return failed if self._opened else self.opening + failed

    # Parts

    def _reasoning(self, text: str) -> bytes:
        found, item = self._at(_REASONING)
        return found + self._event(events.ReasoningDelta, delta=text, **self._in(item, text))

    def _text(self, text: str) -> bytes:
        found, item = self._at(_MESSAGE)
        return found + self._event(events.TextDelta, delta=text, **self._in(item, text))

    def _call(self, piece: CallDelta) -> bytes:
        found, item = self._at(piece.index, piece)
        if not piece.arguments:
            return found
        item.said.arguments += piece.arguments
        return found + self._event(
            events.ArgumentsDelta,
            item_id=item.id,
            output_index=item.place,
            delta=piece.arguments,
        )

    def _in(self, item: _Open, text: str) -> dict[str, Any]:
        item.said.arguments += text
        return {"item_id": item.id, "output_index": item.place}

    # Items

    def _at(self, what: str | int, piece: CallDelta | None = None) -> tuple[bytes, _Open]:
        """Return the events that make an item the open one, and the item."""
        if self._item is not None and self._item.what == what:
            return b"", self._item
        found = self._close("completed") + self._begin(what, piece)
        assert self._item is not None  # noqa: S101 - it has just begun
        return found, self._item

    def _begin(self, what: str | int, piece: CallDelta | None = None) -> bytes:
        if piece is not None and not piece.name:
            raise PdbusError(ErrorCode.INTERNAL, "a tool call went on after the next one began")
        said = SaidCall(piece.id, piece.name, "") if piece is not None else SaidCall("", "", "")
        item = _Open(what, len(self._items), "", said)
        begun = self._worded(item, "in_progress", begun=True)
        item.id = begun.id
        self._item = item
        found = self._event(events.ItemAdded, output_index=item.place, item=begun)
        if isinstance(what, int):
            return found
        part = OutputText(text="") if what == _MESSAGE else ReasoningText(text="")
        place = {"item_id": item.id, "output_index": item.place}
        return found + self._event(events.PartAdded, part=part, **place)

    def _close(self, status: ItemStatus) -> bytes:
        item, self._item = self._item, None
        if item is None:
            return b""
        text = item.said.arguments
        place = {"item_id": item.id, "output_index": item.place}
        if isinstance(item.what, int):
            found = self._event(events.ArgumentsDone, name=item.said.name, arguments=text, **place)
        elif item.what == _MESSAGE:
            found = self._event(events.TextDone, text=text, **place)
            found += self._event(events.PartDone, part=OutputText(text=text), **place)
        else:
            found = self._event(events.ReasoningDone, text=text, **place)
            found += self._event(events.PartDone, part=ReasoningText(text=text), **place)
        done = self._worded(item, status)
        self._items.append(done)
        return found + self._event(events.ItemDone, output_index=item.place, item=done)

    def _worded(self, item: _Open, status: ItemStatus, *, begun: bool = False) -> Item:
        text = None if begun else item.said.arguments
        if isinstance(item.what, int):
            return self._wording.call(item.place, item.said, status)
        if item.what == _MESSAGE:
            return self._wording.message(item.place, text, status)
        return self._wording.reasoning(item.place, text, status)

    def _event(self, kind: Callable[..., Answer], **values: Any) -> bytes:
        event = kind(sequence_number=self._number, **values)
        self._number += 1
        name: str = event.__struct_config__.tag  # type: ignore[assignment]
        return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"
