"""What has become of a request once it is found valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from proto.ledger import Usage
from services.gateway.api import Call
from services.gateway.openai.answers.said import Said
from services.gateway.openai.frames import Frames, Head

__all__ = ["Asked", "Shape"]


class Shape(Protocol):
    """How an endpoint words one answer."""

    def frames(self, head: Head) -> Frames:
        """Return the events of a streamed answer."""
        ...

    def whole(self, head: Head, said: Sequence[Said], usage: Usage) -> msgspec.Struct:
        """Return an answer in one piece; `said` has one entry a choice, in order."""
        ...


class Asked(msgspec.Struct, frozen=True):
    """A request found valid: its calls, and how their answers are given."""

    calls: tuple[Call, ...]
    """One a choice, in the order of their index."""
    choices_a_prompt: int
    """So many calls in a row have one prompt, whose tokens count once."""
    stream: bool
    shape: Shape
    guided: str = ""
    """The field that a guide comes from: named if the engine refuses it."""
