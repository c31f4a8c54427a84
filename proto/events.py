"""Lifecycle events: what happened to a request, kept in JetStream. They inform; they never decide.

No event carries text of a prompt or of an answer.
"""

from __future__ import annotations

from enum import StrEnum

from proto.base import Message
from proto.ids import InstanceId, RequestId

__all__ = ["FINISHED", "Event", "EventBundle", "EventKind"]

FINISHED = "finished"
"""Why a lease ends whose work was done to its end: a fact of `lease.ended` and `lease.freed`."""


class EventKind(StrEnum):
    """What happened; `<noun>.<past tense or stage>`. The value is a part of the subject."""

    REQUEST_ACCEPTED = "request.accepted"
    REQUEST_ASSIGNED = "request.assigned"
    REQUEST_STREAMING = "request.streaming"
    REQUEST_DONE = "request.done"
    REQUEST_FAILED = "request.failed"
    REQUEST_CANCELLED = "request.cancelled"
    ATTEMPT_FAILED = "attempt.failed"
    STAGE_PLACE = "stage.place"
    STAGE_PREFILL_QUEUE = "stage.prefill-queue"
    STAGE_PREFILL = "stage.prefill"
    STAGE_TRANSFER = "stage.transfer"
    STAGE_FIRST_TOKEN = "stage.first-token"  # noqa: S105 - a token of text, not a secret
    STAGE_DECODE = "stage.decode"
    LEASE_ENDED = "lease.ended"
    """Said by the owner of the memory."""
    LEASE_FREED = "lease.freed"
    """Said by cleanup, with the evidence."""
    ENGINE_READY = "engine.ready"
    ENGINE_LOST = "engine.lost"


class Event(Message, frozen=True, kw_only=True):
    """One fact. Stages carry their start; all other events have `start_ms == at_ms`."""

    kind: EventKind
    rid: RequestId | None
    attempt: int
    instance: InstanceId
    at_ms: float
    """Unix time in milliseconds, with fractions, on the clock of `instance`."""
    start_ms: float
    trace: str | None = None
    """Trace id, 32 hex digits."""
    data: dict[str, str | int | float | bool] = {}
    """Facts of this kind: bytes, lane, tokens, seconds, worker, evidence."""

    @property
    def dedup_key(self) -> str:
        """The same fact published twice is stored once."""
        # Several workers may have held one side of an attempt for a moment: each lease is its own.
        side = self.data.get("lease") or self.data.get("side", "")
        # What belongs to no request may happen again: there the time is a part of the fact.
        whose = self.rid or f"at{self.at_ms}"
        return f"{whose}:{self.attempt}:{self.kind}:{self.instance}:{side}"


class EventBundle(Message, frozen=True, kw_only=True):
    """What one process has to say of one request, gathered for a moment; in order.

    It travels on the subject of its last event. Whoever reads events takes both forms.
    """

    events: tuple[Event, ...]
