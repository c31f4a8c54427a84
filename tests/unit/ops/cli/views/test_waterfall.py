"""The picture of a request from fixed events."""

from __future__ import annotations

import pytest
from rich.console import Console

from ops.cli.views.waterfall import build, render
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId

RID = RequestId("0" * 25 + "1")
GATEWAY = InstanceId("gateway-aaaaaaaa")
PREFILL = InstanceId("prefill-bbbbbbbb")
DECODE = InstanceId("decode-cccccccc")


def event(
    kind: EventKind,
    instance: InstanceId,
    start: float,
    end: float | None = None,
    *,
    attempt: int = 0,
    rid: RequestId = RID,
    **data: str | float | bool,
) -> Event:
    """Return an event that starts `start` ms after a fixed moment."""
    origin = 1_700_000_000_000.0
    return Event(
        kind=kind,
        rid=rid,
        attempt=attempt,
        instance=instance,
        start_ms=origin + start,
        at_ms=origin + (start if end is None else end),
        trace="ab" * 16,
        data=data,
    )


def story() -> list[Event]:
    """Return the events of a plain request, out of order."""
    return [
        event(EventKind.STAGE_DECODE, DECODE, 60, 100, tokens=8),
        event(EventKind.STAGE_PLACE, GATEWAY, 1, 4),
        event(
            EventKind.STAGE_TRANSFER,
            DECODE,
            40,
            50,
            moved_bytes=20_000_000,
            expected_bytes=20_000_000,
            lane="sysv",
        ),
        event(EventKind.REQUEST_ACCEPTED, GATEWAY, 0),
        event(EventKind.STAGE_PREFILL, PREFILL, 10, 40),
        event(EventKind.STAGE_PREFILL_QUEUE, PREFILL, 5, 10),
        event(EventKind.STAGE_FIRST_TOKEN, DECODE, 50, 60),
        event(EventKind.REQUEST_DONE, GATEWAY, 101),
        event(EventKind.LEASE_FREED, InstanceId("cleanup-dddddddd"), 400, evidence="owner"),
    ]


def drawn(events: list[Event], columns: int = 160) -> str:
    """Return the picture as plain text."""
    console = Console(width=columns, color_system=None)
    with console.capture() as capture:
        console.print(render(build(events), columns=columns))
    return capture.get()


def test_stages_stand_in_the_order_of_the_request() -> None:
    """Whatever order events are stored in, stages are drawn in the order they are gone through."""
    labels = [stage.label for stage in build(story()).stages]
    assert labels == [
        "place",
        "prefill queue",
        "prefill",
        "KV transfer",
        "first token",
        "decode",
    ]


def test_times_count_from_the_first_event() -> None:
    """A stage starts where it did, counted from the first event, and lasts as long as it did."""
    prefill = build(story()).stages[2]
    assert (prefill.start_ms, prefill.duration_ms) == (10, 30)


def test_transfer_tells_bytes_lane_and_speed() -> None:
    """20 MB in 10 ms are 2 GB/s; moved and expected bytes and the lane stand beside it."""
    note = build(story()).stages[3].note
    assert note == "moved 20,000,000 = expected 20,000,000 bytes, lane sysv, 2.000 GB/s"


def test_the_speed_is_that_of_the_wire() -> None:
    """A stage that mostly waited for what was being computed does not pass for a slow wire."""
    facts = {"moved_bytes": 1_000_000, "expected_bytes": 1_000_000, "lane": "sysv"}
    moved = event(EventKind.STAGE_TRANSFER, DECODE, 0, 300, wire_s=0.001, **facts)
    (stage,) = build([moved]).stages
    assert stage.note.endswith("lane sysv, 1.000 GB/s on the wire")


def test_what_decode_held_already_is_told() -> None:
    """That few bytes were expected has its reason beside it."""
    facts = {"moved_bytes": 5, "expected_bytes": 5, "lane": "sysv", "held_tokens": 1024}
    (stage,) = build([event(EventKind.STAGE_TRANSFER, DECODE, 0, 0, **facts)]).stages
    assert stage.note.endswith("lane sysv, 1,024 tokens were there already")


def test_a_short_transfer_is_visible() -> None:
    """If fewer bytes moved than expected, the picture says so."""
    events = [
        event(EventKind.STAGE_TRANSFER, DECODE, 0, 10, moved_bytes=1, expected_bytes=2, lane="tcp")
    ]
    assert "moved 1 ≠ expected 2 bytes" in build(events).stages[0].note


def test_marks_carry_their_facts() -> None:
    """Accepted, done and freed are listed by time with what they carry."""
    marks = build(story()).marks
    assert [mark.label for mark in marks] == ["request.accepted", "request.done", "lease.freed"]
    assert marks[2].note == "evidence owner"


def test_bars_share_one_scale() -> None:
    """The bar of prefill (10 to 40 of 100 ms) covers its share of the width and no more."""
    line = next(line for line in drawn(story()).splitlines() if line.startswith("prefill  "))
    assert 8 <= line.count("█") <= 11


def test_late_facts_do_not_squeeze_the_bars() -> None:
    """The proof of cleanup comes long after the answer; the scale ends with the last stage."""
    line = next(line for line in drawn(story()).splitlines() if line.startswith("decode"))
    assert line.count("█") >= 12


def test_attempts_are_told_apart() -> None:
    """With a second attempt each stage names its attempt; the first one stands first."""
    retry = event(EventKind.STAGE_PREFILL, PREFILL, 200, 230, attempt=1)
    text = drawn([retry, *story()])
    assert text.index("prefill #0") < text.index("prefill #1")


def test_a_migration_is_told_in_words() -> None:
    """Attempts stand between stages and facts, and facts name their attempt."""
    events = [
        *story(),
        event(EventKind.REQUEST_ASSIGNED, GATEWAY, 2, mode="disaggregated", decode=DECODE),
        event(EventKind.ATTEMPT_FAILED, GATEWAY, 70, code="decode_lost", emitted=5),
        event(EventKind.REQUEST_ASSIGNED, GATEWAY, 75, attempt=1, decode=PREFILL),
        event(EventKind.STAGE_PREFILL, PREFILL, 76, 77, attempt=1),
    ]
    text = drawn(events)
    assert "lost after 5 tokens: decode_lost" in text
    assert text.index("continues at token 5") < text.index("request.accepted #0")
    assert "request.assigned #1" in text


def test_a_stage_without_length_is_still_seen() -> None:
    """A stage of zero milliseconds leaves a mark."""
    assert "▏" in drawn([event(EventKind.STAGE_PLACE, GATEWAY, 3, 3)])


def test_a_narrow_terminal_gets_the_facts_below() -> None:
    """In 80 columns no line is longer than the terminal, and the transfer's facts are whole."""
    text = drawn(story(), columns=80)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "lane sysv, 2.000 GB/s" in " ".join(text.split())


def test_the_pair_of_workers_is_told() -> None:
    """The assignment names mode and workers; the place stage tells only what decided."""
    workers = {"mode": "disaggregated", "prefill": PREFILL, "decode": DECODE}
    events = [
        event(EventKind.STAGE_PLACE, GATEWAY, 0, 1, candidates=4, **workers),
        event(EventKind.REQUEST_ASSIGNED, GATEWAY, 1, **workers),
    ]
    picture = build(events)
    assert picture.stages[0].note == "candidates 4"
    assert picture.marks[0].note == f"disaggregated {PREFILL} → {DECODE}"


def test_one_request_at_a_time() -> None:
    """Events of two requests, or none, are refused."""
    other = event(EventKind.REQUEST_DONE, GATEWAY, 1, rid=RequestId("0" * 25 + "2"))
    with pytest.raises(ValueError, match="exactly one"):
        build([*story(), other])
    with pytest.raises(ValueError, match="exactly one"):
        build([])
