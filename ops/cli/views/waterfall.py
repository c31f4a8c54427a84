"""From the events of a request to a picture of its stages. Pure: no input or output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ops.cli.views.attempts import Attempt, attempts_of
from proto.events import Event, EventKind

__all__ = ["Mark", "Stage", "Waterfall", "build", "render"]

_STAGES: Mapping[EventKind, str] = {
    EventKind.STAGE_PLACE: "place",
    EventKind.STAGE_PREFILL_QUEUE: "prefill queue",
    EventKind.STAGE_PREFILL: "prefill",
    EventKind.STAGE_TRANSFER: "KV transfer",
    EventKind.STAGE_FIRST_TOKEN: "first token",
    EventKind.STAGE_DECODE: "decode",
}
"""In the order in which a request goes through them."""

_COLORS: Mapping[EventKind, str] = {
    EventKind.STAGE_PLACE: "magenta",
    EventKind.STAGE_PREFILL_QUEUE: "bright_black",
    EventKind.STAGE_PREFILL: "blue",
    EventKind.STAGE_TRANSFER: "yellow",
    EventKind.STAGE_FIRST_TOKEN: "cyan",
    EventKind.STAGE_DECODE: "green",
}

BAR_WIDTH = 30

WIDE = 140
"""Columns from which on a stage and its facts stand in one line."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One bar."""

    kind: EventKind
    label: str
    instance: str
    attempt: int
    start_ms: float
    """From the first event of the request."""
    duration_ms: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """One fact at one moment."""

    label: str
    instance: str
    attempt: int
    at_ms: float
    """From the first event of the request."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A request's story in the order in which it is drawn."""

    rid: str
    trace: str | None
    total_ms: float
    attempts: tuple[Attempt, ...]
    stages: tuple[Stage, ...]
    marks: tuple[Mark, ...]


def build(events: Iterable[Event]) -> Waterfall:
    """Return the picture of one request; the order of `events` does not matter.

    Raises:
        ValueError: there is no event, or there are events of several requests.
    """
    known = list(events)
    if len({event.rid for event in known}) != 1:
        message = "the events of exactly one request are needed"
        raise ValueError(message)
    origin = min(min(event.start_ms, event.at_ms) for event in known)
    order = list(_STAGES)
    stages = [_stage(event, origin) for event in known if event.kind in _STAGES]
    stages.sort(key=lambda s: (s.attempt, order.index(s.kind), s.start_ms, s.instance))
    marks = [_mark(event, origin) for event in known if event.kind not in _STAGES]
    marks.sort(key=lambda m: m.at_ms)
    return Waterfall(
        rid=str(known[0].rid),
        trace=next((event.trace for event in known if event.trace), None),
        total_ms=max(event.at_ms for event in known) - origin,
        attempts=attempts_of(known),
        stages=tuple(stages),
        marks=tuple(marks),
    )


def render(waterfall: Waterfall, *, columns: int = 80) -> RenderableType:
    """Return the picture for a terminal that is `columns` wide."""
    wide = columns >= WIDE
    title = f"request {waterfall.rid}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("where", style="bright_black", no_wrap=True)
    table.add_column("from ms", justify="right", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("", width=BAR_WIDTH, no_wrap=True)
    if wide:
        table.add_column("")
    # Marks after the last stage (such as the proof of cleanup) must not squeeze the bars.
    span = max((s.start_ms + s.duration_ms for s in waterfall.stages), default=0.0)
    for stage in waterfall.stages:
        cells = (
            _name(stage, waterfall),
            stage.instance,
            f"{stage.start_ms:.0f}",
            f"{stage.duration_ms:.1f}",
            Text(_bar(stage, span), style=_COLORS[stage.kind]),
        )
        table.add_row(*cells, stage.note) if wide else table.add_row(*cells)
    notes = () if wide else _note_lines(waterfall)
    trace = [Text(f"trace {waterfall.trace}", style="bright_black")] if waterfall.trace else []
    attempts = [*_attempt_lines(waterfall.attempts), Text()]
    return Group(table, Text(), *notes, *attempts, *_mark_lines(waterfall), *trace)


def _name(entry: Stage | Mark, waterfall: Waterfall) -> str:
    retried = any(other.attempt for other in waterfall.stages)
    return f"{entry.label} #{entry.attempt}" if retried else entry.label


def _note_lines(waterfall: Waterfall) -> list[RenderableType]:
    return [
        Text(f"{_name(stage, waterfall)}: {stage.note}") for stage in waterfall.stages if stage.note
    ]


def _attempt_lines(attempts: Sequence[Attempt]) -> list[RenderableType]:
    return [
        Text.assemble(
            f"attempt {attempt.number}  ",
            (f"{attempt.where}  ", "bright_black"),
            "; ".join(part for part in (attempt.course, ", ".join(attempt.freed)) if part),
        )
        for attempt in attempts
    ]


def _mark_lines(waterfall: Waterfall) -> list[RenderableType]:
    names = [_name(mark, waterfall) for mark in waterfall.marks]
    width = max(map(len, names), default=0)
    return [
        Text.assemble(
            (f"{mark.at_ms:7.0f} ms  ", "bright_black"),
            f"{name:<{width}}  ",
            (f"{mark.instance}  ", "bright_black"),
            mark.note,
        )
        for name, mark in zip(names, waterfall.marks, strict=True)
    ]


def _bar(stage: Stage, span_ms: float) -> str:
    if span_ms <= 0:
        return "▏"
    start = min(BAR_WIDTH - 1, int(stage.start_ms / span_ms * BAR_WIDTH))
    end = min(BAR_WIDTH, round((stage.start_ms + stage.duration_ms) / span_ms * BAR_WIDTH))
    return " " * start + ("█" * (end - start) or "▏")


def _stage(event: Event, origin: float) -> Stage:
    return Stage(
        kind=event.kind,
        label=_STAGES[event.kind],
        instance=event.instance,
        attempt=event.attempt,
        start_ms=event.start_ms - origin,
        duration_ms=event.at_ms - event.start_ms,
        note=_NOTES.get(event.kind, _facts)(event),
    )


def _mark(event: Event, origin: float) -> Mark:
    note = _NOTES.get(event.kind, _facts)(event)
    return Mark(str(event.kind), event.instance, event.attempt, event.at_ms - origin, note)


def _facts(event: Event, hidden: Collection[str] = ()) -> str:
    shown = (item for item in event.data.items() if item[0] not in hidden)
    return ", ".join(f"{key} {_value(value)}" for key, value in shown)


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _transfer(event: Event) -> str:
    """Bytes moved and expected, lane and speed.

    The stage may also be a wait for what is being computed, so the speed is that of the wire; of an
    event that does not tell it, that of the stage.
    """
    moved = event.data.get("moved_bytes")
    expected = event.data.get("expected_bytes")
    lane = event.data.get("lane", "unknown")
    if not isinstance(moved, int) or not isinstance(expected, int):
        return _facts(event)
    equal = "=" if moved == expected else "≠"
    parts = [f"moved {moved:,} {equal} expected {expected:,} bytes", f"lane {lane}"]
    held = event.data.get("held_tokens")
    if isinstance(held, int) and held:
        parts.append(f"{held:,} tokens were there already")
    wire_s = event.data.get("wire_s")
    if isinstance(wire_s, float) and wire_s > 0:
        parts.append(f"{moved / wire_s / 1e9:.3f} GB/s on the wire")
    elif (seconds := (event.at_ms - event.start_ms) / 1000) > 0:
        parts.append(f"{moved / seconds / 1e9:.3f} GB/s")
    return ", ".join(parts)


def _place(event: Event) -> str:
    """What decided; the workers themselves stand at `request.assigned`."""
    return _facts(event, {"mode", "decode", "prefill"})


def _assigned(event: Event) -> str:
    data = event.data
    pair = " → ".join(str(data[side]) for side in ("prefill", "decode") if side in data)
    return f"{data.get('mode', '')} {pair}".strip()


def _ended(event: Event) -> str:
    """Side, size and reason; the id of the lease repeats what is known."""
    return _facts(event, {"lease"})


_NOTES: Mapping[EventKind, Callable[[Event], str]] = {
    EventKind.STAGE_PLACE: _place,
    EventKind.STAGE_TRANSFER: _transfer,
    EventKind.REQUEST_ASSIGNED: _assigned,
    EventKind.LEASE_ENDED: _ended,
}
