"""Collecting the events of one request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ops.cli.errors import CommandError
from proto.events import Event, EventKind
from proto.ids import RequestId
from proto.ledger import Mode
from proto.workers import LeaseSide

__all__ = ["complete", "gather", "request_id"]

SETTLE_S = 3.0
"""How long the proof of cleanup is waited for after an answer has ended."""

POLL_S = 0.1

_ENDS = {EventKind.REQUEST_DONE, EventKind.REQUEST_FAILED, EventKind.REQUEST_CANCELLED}
_ID_LENGTH = 26

Read = Callable[[RequestId], Awaitable[list[Event]]]
"""Returns the stored events of a request."""


def request_id(text: str) -> RequestId:
    """Return the request id in what a user pasted: the id, or the id of an answer.

    Raises:
        CommandError: it is neither.
    """
    rid = text.strip().removeprefix("chatcmpl-").lower()
    if len(rid) != _ID_LENGTH or not rid.isalnum():
        message = f"{text!r} is no request id; take the `id` of an answer or its x-request-id"
        raise CommandError(message)
    return RequestId(rid)


def complete(events: list[Event]) -> bool:
    """Return whether the request has ended and its leases are proved free.

    A lease is known by its owner's word that it ended; of an answered request also by its last
    assignment. Other attempts may have ended before a worker took them.
    """
    kinds = {event.kind for event in events}
    if not kinds & _ENDS:
        return False
    freed = {_lease(e) for e in events if e.kind is EventKind.LEASE_FREED}
    known = {_lease(e) for e in events if e.kind is EventKind.LEASE_ENDED}
    if EventKind.REQUEST_DONE in kinds:
        known |= _leases(events)
    return known <= freed


async def gather(read: Read, rid: RequestId, *, settle_s: float) -> list[Event]:
    """Return the events of a request; wait up to `settle_s` for its story to be complete.

    Raises:
        CommandError: no event of it is stored.
    """
    until = time.monotonic() + settle_s
    while True:
        events = await read(rid)
        if complete(events) or time.monotonic() >= until:
            break
        await asyncio.sleep(POLL_S)
    if not events:
        message = f"no event of request {rid} is stored (they are kept for a day)"
        raise CommandError(message)
    return events


def _lease(event: Event) -> tuple[int, str]:
    return event.attempt, str(event.data.get("side"))


def _leases(events: list[Event]) -> set[tuple[int, str]]:
    """Return the leases that the last assignment leads to, if it is carried out."""
    assigned = [event for event in events if event.kind is EventKind.REQUEST_ASSIGNED]
    if not assigned:
        return set()
    last = max(assigned, key=lambda event: event.attempt)
    both = last.data.get("mode") == Mode.DISAGGREGATED
    sides = (LeaseSide.SRC, LeaseSide.DST) if both else (LeaseSide.DST,)
    return {(last.attempt, str(side)) for side in sides}
