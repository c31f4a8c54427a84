"""What a stream needs of an endpoint: its events, for each thing that can happen."""

from __future__ import annotations

from typing import Protocol

import msgspec

from proto.errors import PdbusError
from proto.gateway import FinishReason
from proto.ids import RequestId
from proto.ledger import Usage
from services.gateway.api import Part

__all__ = ["Frames", "Head"]


class Head(msgspec.Struct, frozen=True):
    """What all parts of one answer share."""

    rid: RequestId
    created: int
    """Unix seconds."""
    model: str


class Frames(Protocol):
    """The events of one answer, which may have several choices."""

    @property
    def opening(self) -> bytes:
        """The first events, written together with whatever comes first."""
        ...

    def delta(self, index: int, delta: Part) -> bytes:
        """Return the events for some tokens of a choice; may be none."""
        ...

    def finish(self, index: int, reason: FinishReason) -> bytes:
        """Return the events that end a choice."""
        ...

    def end(self, usage: Usage) -> bytes:
        """Return the events that end the answer."""
        ...

    def failure(self, error: PdbusError) -> bytes:
        """Return the events that end an answer that failed after its first byte."""
        ...
