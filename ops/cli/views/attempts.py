"""The attempts of one request: where each ran, how it ended, what proves its memory free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from proto.events import Event, EventKind
from proto.workers import LeaseSide

__all__ = ["Attempt", "attempts_of"]

_ENDS = {
    EventKind.REQUEST_DONE: "done",
    EventKind.REQUEST_FAILED: "failed",
    EventKind.REQUEST_CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt in words."""

    number: int
    where: str
    """Mode and workers."""
    course: str
    """How it began, if another one came before, and how it ended."""
    freed: tuple[str, ...]
    """A word on each side's lease."""


def attempts_of(events: Iterable[Event]) -> tuple[Attempt, ...]:
    """Return the attempts of a request; the order of `events` does not matter."""
    known = sorted(events, key=lambda event: event.at_ms)
    assigned = {e.attempt: e for e in known if e.kind is EventKind.REQUEST_ASSIGNED}
    return tuple(
        Attempt(
            number=number,
            where=_where(assigned[number]),
            course=", ".join(_course(number, known)),
            freed=tuple(_freed(assigned[number], known)),
        )
        for number in sorted(assigned)
    )


def _where(assigned: Event) -> str:
    workers = [str(assigned.data[side]) for side in ("prefill", "decode") if _named(assigned, side)]
    return f"{assigned.data.get('mode', '')} {' → '.join(workers)}".strip()


def _named(assigned: Event, side: str) -> bool:
    return bool(assigned.data.get(side))


def _course(number: int, events: Sequence[Event]) -> Iterator[str]:
    before = _loss(number - 1, events)
    if before is not None:
        emitted = before.data.get("emitted")
        yield f"continues at token {emitted}" if emitted else "begins anew"
    lost = _loss(number, events)
    if lost is not None:
        yield f"lost after {lost.data['emitted']} tokens: {lost.data.get('code')}"
        if lost.data.get("final"):
            yield f"no other one: {lost.data['final']}"
        return
    for event in events:
        if event.kind in _ENDS and event.attempt == number:
            code = f" ({event.data['code']})" if "code" in event.data else ""
            yield f"{_ENDS[event.kind]}{code}"


def _loss(number: int, events: Sequence[Event]) -> Event | None:
    """Return what the gateway says of a lost attempt; the worker's own word has no offset."""
    for event in events:
        failed = event.kind is EventKind.ATTEMPT_FAILED and event.attempt == number
        if failed and "emitted" in event.data:
            return event
    return None


def _freed(assigned: Event, events: Sequence[Event]) -> Iterator[str]:
    mine = [event for event in events if event.attempt == assigned.attempt]
    for side, worker in ((LeaseSide.SRC, "prefill"), (LeaseSide.DST, "decode")):
        if not _named(assigned, worker):
            continue
        of_side = [event for event in mine if event.data.get("side") == side]
        freed = next((e for e in of_side if e.kind is EventKind.LEASE_FREED), None)
        if freed is not None:
            order = ", by order" if freed.data.get("ordered") else ""
            yield f"{side} freed ({freed.data.get('evidence')}{order})"
        elif any(event.kind is EventKind.LEASE_ENDED for event in of_side):
            yield f"{side} ended, not proved free"
        else:
            yield f"{side} without a word"
