"""Processes that export nothing: ids and contexts as ever, and no records."""

from __future__ import annotations

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from libs.telemetry import attach, linked_root, recording, span, trace_id, traceparent
from libs.telemetry.quiet import QuietTracerProvider
from libs.telemetry.traces import make_tracer_provider

CALLER = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def current() -> str | None:
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def test_it_is_used_where_nothing_is_exported(monkeypatch):
    """Without an OTLP endpoint spans cost next to nothing; with one they are recorded."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    provider = make_tracer_provider(Resource({}))
    assert isinstance(provider, QuietTracerProvider)
    provider.shutdown()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    provider = make_tracer_provider(Resource({}))
    assert not isinstance(provider, QuietTracerProvider)
    provider.shutdown()


def test_a_root_has_an_id_and_its_children_share_it():
    """A request without a caller's context has one trace, sampled, and the block ends it."""
    tracer = QuietTracerProvider().get_tracer("any")
    assert current() is None
    with tracer.start_as_current_span("outer", attributes={"a": 1}) as outer:
        outer.set_attribute("b", 2)
        seen = current()
        assert seen is not None
        assert seen.endswith("-01")
        with tracer.start_as_current_span("inner") as inner:
            assert inner.get_span_context() == outer.get_span_context()
            assert current() == seen
        assert current() == seen
        made = tracer.start_span("stage", start_time=1)
        assert made.get_span_context() == outer.get_span_context()
        made.end(2)
    assert current() is None


def test_a_callers_context_is_passed_on_as_it_came():
    """Ids, flags and all: processes that export see their caller's span as the parent."""
    tracer = QuietTracerProvider().get_tracer("any")
    extract = TraceContextTextMapPropagator().extract
    for given in (CALLER, CALLER[:-2] + "00"):
        token = otel_context.attach(extract({"traceparent": given}))
        with tracer.start_as_current_span("work"):
            assert current() == given
        assert current() == given
        otel_context.detach(token)


def test_a_context_may_be_given():
    """A span in another context than the current one leaves the current one alone."""
    tracer = QuietTracerProvider().get_tracer("any")
    other = TraceContextTextMapPropagator().extract({"traceparent": CALLER})
    with (
        tracer.start_as_current_span("outer") as outer,
        tracer.start_as_current_span("other", context=other),
    ):
        assert current() == CALLER
        assert trace.get_current_span().get_span_context() != outer.get_span_context()


@pytest.fixture
def quiet(monkeypatch):
    """Let this process export nothing."""
    provider = QuietTracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("given", [CALLER, CALLER[:-2] + "00"])
def test_a_callers_header_is_passed_on_as_it_came(given: str):
    """It is the trace of all that is done for it, for our own readers and for OpenTelemetry's."""
    with attach(given):
        assert traceparent() == (given, None)
        assert current() == given
        with span("work") as work:
            assert not work.is_recording()
            assert trace_id() == "ab" * 16
            assert traceparent() == (given, None)
            context = work.get_span_context()
            assert (context.trace_id, context.span_id) == (int("ab" * 16, 16), int("cd" * 8, 16))
            assert context.trace_flags.sampled == given.endswith("01")
    assert traceparent() == (None, None)
    assert trace_id() is None


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        CALLER.upper(),
        CALLER + "-00",
        "00-" + "0" * 32 + "-" + "cd" * 8 + "-01",
        "00-" + "ab" * 16 + "-" + "0" * 16 + "-01",
        "ff" + CALLER[2:],
    ],
)
def test_without_a_good_header_work_has_a_trace_of_its_own(header: str | None):
    """What no caller can have meant is no parent, and two pieces of work share nothing."""
    seen = set()
    for _ in range(2):
        with attach(header):
            assert traceparent() == (None, None)
            with span("work"):
                parent, state = traceparent()
                assert parent is not None
                assert (parent[:3], parent[-3:], state) == ("00-", "-01", None)
                assert current() == parent
                seen.add(trace_id())
    assert len(seen) == 2


@pytest.mark.usefixtures("quiet")
def test_a_small_trace_id_and_a_state_are_kept():
    """They come by the general way."""
    small = "00-" + "0" * 30 + "ab-" + "cd" * 8 + "-01"
    with attach(small):
        assert traceparent() == (small, None)
    with attach(CALLER, "vendor=1"):
        assert traceparent() == (CALLER, "vendor=1")


@pytest.mark.usefixtures("quiet")
def test_a_context_within_another_is_the_current_one_until_its_end():
    """Blocks may stand within each other: ours and OpenTelemetry's readers see the innermost."""
    other = CALLER.replace("ab", "12")
    with attach(CALLER), span("outer") as outer:
        with attach(other), span("inner") as inner:
            assert inner is not outer
            assert (traceparent(), current()) == ((other, None), other)
        with attach(None):
            assert (traceparent(), current()) == ((None, None), None)
        with linked_root("later", (other, None)):
            assert trace_id() not in {"ab" * 16, "12" * 16, None}
        assert (traceparent(), current()) == ((CALLER, None), CALLER)
        assert not recording()
    assert (trace_id(), current()) == (None, None)


@pytest.mark.usefixtures("quiet")
def test_work_that_nobody_waits_for_has_a_trace_of_its_own():
    """It has its cause's decision to sample, and not its ids."""
    with linked_root("later", (CALLER, None)):
        assert trace_id() not in {None, "ab" * 16}
