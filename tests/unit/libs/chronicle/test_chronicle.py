"""One call tells a stage to the event stream and to the trace, each in its own words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from libs.bus.api import Bus
from libs.chronicle import Chronicle
from libs.clock import Clock
from libs.telemetry import attributes, names, span, trace_id
from proto.errors import ErrorCode
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId

RID = RequestId("01hf7yb2ny8wsyvtsy3bemvcp2")
NOW_MS = 5000


@dataclass
class Told:
    events: list[Event] = field(default_factory=list[Event])

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def unix_ms(self) -> int:
        return NOW_MS


@pytest.fixture
def told() -> Told:
    """What went to the event stream."""
    return Told()


@pytest.fixture
def chronicle(told: Told) -> Chronicle:
    """A teller whose time stands still."""
    bus, clock = cast("Bus", told), cast("Clock", told)
    return Chronicle(bus=bus, clock=clock, instance=InstanceId("decode-1"))


def test_a_fact_is_an_event_of_the_current_trace(told: Told, chronicle: Chronicle):
    """A fact has the time of the telling, and the id of the trace that it belongs to."""
    with span("work"):
        chronicle.fact(EventKind.REQUEST_ACCEPTED, RID, prompt_tokens=3)
        current = trace_id()
    (event,) = told.events
    assert (event.at_ms, event.start_ms, event.trace) == (NOW_MS, NOW_MS, current)
    assert (event.instance, event.rid, event.data) == ("decode-1", RID, {"prompt_tokens": 3})


@pytest.mark.parametrize(
    ("stage", "data", "expected"),
    [
        (
            (EventKind.STAGE_PLACE, names.SPAN_GATEWAY_PLACE),
            {"decode": "decode-1", "candidates": 2, "score.decode_busy": 0.5},
            {attributes.ROUTE_DECODE: "decode-1", attributes.ROUTE_CANDIDATES: 2},
        ),
        (
            (EventKind.STAGE_PREFILL, names.SPAN_PREFILL_FORWARD),
            {"tokens": 9, "cached_tokens": 4, "bytes": 7},
            {
                attributes.GEN_AI_INPUT_TOKENS: 9,
                attributes.GEN_AI_CACHED_TOKENS: 4,
                attributes.KV_BYTES: 7,
            },
        ),
        (
            (EventKind.STAGE_TRANSFER, names.SPAN_KV_TRANSFER),
            {"tokens": 9, "moved_bytes": 7, "expected_bytes": 8, "lane": "sysv"},
            {
                attributes.KV_TOKENS: 9,
                attributes.KV_BYTES: 7,
                attributes.KV_EXPECTED_BYTES: 8,
                attributes.KV_LANE: "sysv",
            },
        ),
        (
            (EventKind.STAGE_DECODE, names.SPAN_DECODE_LOOP),
            {"tokens": 9, "finish": "stop"},
            {attributes.GEN_AI_OUTPUT_TOKENS: 9, attributes.GEN_AI_FINISH_REASONS: ("stop",)},
        ),
    ],
)
def test_a_stage_is_an_event_and_a_span(
    told: Told,
    chronicle: Chronicle,
    spans: InMemorySpanExporter,
    stage: tuple[EventKind, str],
    data: dict[str, Any],
    expected: dict[str, Any],
):
    """The event keeps its short facts; the span has those of the registry, by their full names."""
    kind, name = stage
    chronicle.stage(kind, RID, 1, 1000.0, 1500.0, **data)
    (event,) = told.events
    assert (event.kind, event.start_ms, event.at_ms, event.data) == (kind, 1000, 1500, data)
    (finished,) = spans.get_finished_spans()
    assert finished.name == name
    assert (finished.start_time, finished.end_time) == (1_000_000_000, 1_500_000_000)
    identity = {attributes.REQUEST_ID: RID, attributes.ATTEMPT: 1}
    assert dict(finished.attributes or {}) == identity | expected


def test_a_cut_stage_is_a_failed_span_and_no_event(
    told: Told, chronicle: Chronicle, spans: InMemorySpanExporter
):
    """A stage that breaks off ends now with its code; its cause is told elsewhere."""
    chronicle.cut(EventKind.STAGE_DECODE, RID, 0, 4000.0, ErrorCode.ENGINE_ERROR, tokens=2)
    assert told.events == []
    (finished,) = spans.get_finished_spans()
    assert finished.end_time == NOW_MS * 1_000_000
    assert finished.status.status_code is StatusCode.ERROR
    found = dict(finished.attributes or {})
    assert found[attributes.ERROR_TYPE] == "engine_error"
    assert found[attributes.GEN_AI_OUTPUT_TOKENS] == 2
