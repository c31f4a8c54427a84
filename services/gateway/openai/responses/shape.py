"""An answer of `/v1/responses`, whole or as events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.responses.answer import Item, ItemStatus, ResponseBody
from proto.openai.responses.request import ResponseRequest
from services.gateway.openai.answers.said import Said
from services.gateway.openai.frames import Head
from services.gateway.openai.responses.frames import ResponseFrames
from services.gateway.openai.responses.wording import Wording

__all__ = ["ResponseShape"]


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """How answers to one request are worded."""

    request: ResponseRequest

    @property
    def one_call(self) -> bool:
        """Whether only the first call is given."""
        return self.request.parallel_tool_calls is False

    def frames(self, head: Head) -> ResponseFrames:
        """Return the events of a streamed answer."""
        return ResponseFrames(Wording(self.request, head), one_call=self.one_call)

    def whole(self, head: Head, said: Sequence[Said], usage: Usage) -> ResponseBody:
        """Return an answer in one piece."""
        wording = Wording(self.request, head)
        (only,) = said
        most = 1 if self.one_call else None
        return wording.ended(_items(wording, only, most), only.ended, usage)


def _items(wording: Wording, said: Said, most: int | None) -> list[Item]:
    """Return what was said in the order in which it is streamed; only the last item may be cut.

    Args:
        most: so many calls are given; None for all.
    """
    calls = [said.calls[index] for index in sorted(said.calls)][:most]
    speaks = bool(said.text) or not (said.reasoning or calls)
    count = bool(said.reasoning) + speaks + len(calls)
    cut: ItemStatus = "incomplete" if said.ended is FinishReason.LENGTH else "completed"
    whole: list[ItemStatus] = ["completed"]
    states: list[ItemStatus] = whole * (count - 1) + [cut]
    items: list[Item] = []
    if said.reasoning:
        items.append(wording.reasoning(0, said.reasoning, states[0]))
    if speaks:
        items.append(wording.message(len(items), said.text, states[len(items)]))
    for call in calls:
        items.append(wording.call(len(items), call, states[len(items)]))
    return items
