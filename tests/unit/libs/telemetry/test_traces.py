"""Spans and the context that ties them together."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from libs.telemetry import (
    attach,
    attributes,
    linked_root,
    mark_failed,
    record_span,
    set_attributes,
    span,
    trace_id,
    traceparent,
)
from proto.errors import ErrorCode, PdbusError

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


def test_a_span_has_a_trace_id_without_any_exporter(spans: InMemorySpanExporter):
    """Work always has a trace id to give to logs and events."""
    assert trace_id() is None
    with span("work"):
        found = trace_id()
        assert found is not None
        assert len(found) == 32
    assert trace_id() is None


def test_a_callers_context_is_continued(spans: InMemorySpanExporter):
    """A span inside `attach` is a child in the caller's trace, and passes its state on."""
    with attach(SAMPLED, "vendor=1"), span("work"):
        parent, state = traceparent()
        assert trace_id() == TRACE
        assert parent is not None
        assert parent.split("-")[1] == TRACE
        assert parent != SAMPLED
        assert state == "vendor=1"
    (finished,) = spans.get_finished_spans()
    assert finished.parent is not None
    assert f"{finished.parent.span_id:016x}" == "b7ad6b7169203331"


def test_a_caller_that_does_not_sample_is_obeyed(spans: InMemorySpanExporter):
    """The flag 00 of a caller goes on to the next process, and nothing is recorded."""
    with attach(UNSAMPLED), span("work"):
        parent, _ = traceparent()
        assert parent is not None
        assert parent.startswith(f"00-{TRACE}-")
        assert parent.endswith("-00")
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize(
    "header", [None, "", "junk", "00-zz-zz-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"]
)
def test_a_malformed_context_begins_a_new_trace(spans: InMemorySpanExporter, header: str | None):
    """A bad header neither fails nor leaks the surrounding trace into the block."""
    with span("outer"):
        outer = trace_id()
        with attach(header):
            assert trace_id() is None
            with span("inner"):
                assert trace_id() not in {None, outer}
        assert trace_id() == outer


def test_a_failure_sets_the_code_and_not_the_text(spans: InMemorySpanExporter):
    """A span of a failed block carries the error's code; no text of it is recorded."""
    with pytest.raises(PdbusError), span("work"):
        raise PdbusError(ErrorCode.SATURATED, "secret prompt")
    (finished,) = spans.get_finished_spans()
    assert finished.status.status_code is StatusCode.ERROR
    assert dict(finished.attributes or {})[attributes.ERROR_TYPE] == "saturated"
    assert "secret" not in finished.to_json()


async def test_a_cancelled_block_is_marked_cancelled(spans: InMemorySpanExporter):
    """Cancellation ends a span with the code `cancelled`."""
    with pytest.raises(asyncio.CancelledError), span("work"):
        raise asyncio.CancelledError
    (finished,) = spans.get_finished_spans()
    assert dict(finished.attributes or {})[attributes.ERROR_TYPE] == "cancelled"


def test_a_recorded_stage_keeps_its_times_and_parent(spans: InMemorySpanExporter):
    """A stage that is over becomes a child span with the given start and end."""
    with span("work"):
        record_span("stage", 1_000_000.5, 1_000_002.75, {"pdbus.kv.bytes": 7})
    stage, work = spans.get_finished_spans()
    assert (stage.start_time, stage.end_time) == (1_000_000_500_000, 1_000_002_750_000)
    assert stage.parent is not None
    assert stage.parent.span_id == work.context.span_id
    assert dict(stage.attributes or {}) == {"pdbus.kv.bytes": 7}


def test_a_stage_never_ends_before_its_start(spans: InMemorySpanExporter):
    """Times of two clocks that disagree give a span of length zero, not a negative one."""
    record_span("stage", 2000.0, 1000.0, error_type="deadline")
    (stage,) = spans.get_finished_spans()
    assert stage.end_time == stage.start_time
    assert stage.status.status_code is StatusCode.ERROR


def test_work_that_nobody_waits_for_links_to_its_cause(spans: InMemorySpanExporter):
    """A linked root has its own trace and names the request's span as a link."""
    with span("outer"), linked_root("cleanup", (SAMPLED, None)):
        assert trace_id() != TRACE
    finished = spans.get_finished_spans()[0]
    assert finished.parent is None
    assert [f"{link.context.trace_id:032x}" for link in finished.links] == [TRACE]


def test_what_follows_from_an_unsampled_request_is_not_recorded(spans: InMemorySpanExporter):
    """A linked root of a caller that does not sample leaves nothing."""
    with linked_root("cleanup", (UNSAMPLED, None)):
        pass
    assert spans.get_finished_spans() == ()


def test_a_span_can_be_marked_as_failed(spans: InMemorySpanExporter):
    """Work that ends badly without an exception gets status and code all the same."""
    with span("work"):
        mark_failed("cancelled")
    (finished,) = spans.get_finished_spans()
    assert finished.status.status_code is StatusCode.ERROR
    assert dict(finished.attributes or {})[attributes.ERROR_TYPE] == "cancelled"


def test_attributes_can_be_added_inside(spans: InMemorySpanExporter):
    """`set_attributes` adds to the current span."""
    with span("work", {"a": 1}):
        set_attributes(**{attributes.KV_LANE: "sysv"})
    (finished,) = spans.get_finished_spans()
    assert dict(finished.attributes or {}) == {"a": 1, "pdbus.kv.lane": "sysv"}


def test_everything_is_safe_without_a_set_up_process():
    """Without providers nothing is recorded, and a caller's context still travels on."""
    code = (
        "from libs.telemetry import *\n"
        "from libs.telemetry import names\n"
        "count(names.TASK_FAILURES, task='x'); observe(names.GATEWAY_TTFT, 1, model_name='m')\n"
        "gauge(names.READY, lambda: 1)()\n"
        "record_span('s', 1, 2)\n"
        "assert trace_id() is None and traceparent() == (None, None)\n"
        f"with attach('{SAMPLED}'), span('w'):\n"
        f"    assert traceparent()[0] == '{SAMPLED}'\n"
        "get_logger().info('fine', a=1)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=30)
