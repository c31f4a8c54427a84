"""Traces: spans of work, and the W3C context that ties them together across processes.

All functions work without a set-up provider; then nothing is recorded, and an incoming context is
passed on as it is.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from libs.telemetry.attributes import ERROR_TYPE
from libs.telemetry.quiet import (
    Attached,
    QuietSpan,
    QuietTracerProvider,
    current_span,
    quiet_span,
)
from proto.errors import ErrorCode, PdbusError

__all__ = [
    "Attribute",
    "Span",
    "SpanKind",
    "attach",
    "caller_span",
    "linked_root",
    "make_tracer_provider",
    "mark_failed",
    "otlp_enabled",
    "record_span",
    "recording",
    "set_attributes",
    "span",
    "trace_id",
    "traceparent",
]

Attribute = str | int | float | bool | tuple[str, ...]
"""A value of a span attribute."""

_SCOPE = "pdbus"
_EXPORT_EVERY_MS = 1000
_QUEUE_SPANS = 4096

_propagator = TraceContextTextMapPropagator()
_PLAIN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
"""A `traceparent` of the only version there is; whatever else is the propagator's to judge."""
_NOBODY = re.compile(r"-0{16}")
"""An id that may be nothing but zeros; such an id is none."""


def recording() -> bool:
    """Return whether spans go anywhere; where they do not, their facts need not be gathered."""
    return quiet_span() is None and not isinstance(trace.get_tracer_provider(), QuietTracerProvider)


def span(
    name: str,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
) -> AbstractContextManager[Span]:
    """Run a block as a child span of the current one, and make it the current one.

    A failure sets the status and `error.type` (the code of a `PdbusError`, else the class name);
    its text is not recorded, because it may hold text of a request.
    """
    quiet = quiet_span()
    if quiet is not None:
        # It is the current one already.
        return quiet
    provider = trace.get_tracer_provider()
    if isinstance(provider, QuietTracerProvider):
        return provider.block()
    return _recorded(name, attributes, kind)


def caller_span(
    name: str,
    caller: tuple[str | None, str | None],
    attributes: Mapping[str, Attribute] | None = None,
    *,
    kind: SpanKind,
) -> AbstractContextManager[Span]:
    """Run a block as a span of a caller's trace: `attach` and `span` in one.

    Args:
        name: of the span.
        caller: its `traceparent` and `tracestate`; without them, the span begins a new trace.
        attributes: facts of the span.
        kind: of the span.
    """
    context = _extract(*caller)
    provider = trace.get_tracer_provider()
    if isinstance(provider, QuietTracerProvider):
        return provider.within(context)
    return _called(name, context, attributes, kind)


@contextmanager
def _called(
    name: str, context: Context, attributes: Mapping[str, Attribute] | None, kind: SpanKind
) -> Generator[Span]:
    with Attached(context), _recorded(name, attributes, kind) as current:
        yield current


@contextmanager
def _recorded(
    name: str, attributes: Mapping[str, Attribute] | None, kind: SpanKind
) -> Generator[Span]:
    tracer = _tracer()
    with tracer.start_as_current_span(
        name,
        kind=kind,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as error:
            _mark(current, _error_type(error))
            raise


def record_span(
    name: str,
    start_ms: float,
    end_ms: float,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    error_type: str | None = None,
) -> None:
    """Record a stage that is over as a child of the current span; times are Unix milliseconds."""
    if not recording():
        return
    tracer = _tracer()
    stage = tracer.start_span(name, attributes=attributes, start_time=_to_ns(start_ms))
    if error_type is not None:
        _mark(stage, error_type)
    stage.end(end_time=_to_ns(max(start_ms, end_ms)))


@contextmanager
def linked_root(
    name: str,
    parent: tuple[str | None, str | None],
    attributes: Mapping[str, Attribute] | None = None,
) -> Generator[Span]:
    """Run a block as the root of a new trace with a link: for work that nobody waits for.

    What follows from a request that was not sampled is not sampled either.
    """
    origin = trace.get_current_span(_extract(*parent)).get_span_context()
    links = [Link(origin)] if origin.is_valid else []
    silent = origin.is_valid and not origin.trace_flags.sampled
    context = (
        trace.set_span_in_context(NonRecordingSpan(origin), Context()) if silent else Context()
    )
    tracer = _tracer()
    with tracer.start_as_current_span(
        name,
        context=context,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as error:
            _mark(current, _error_type(error))
            raise


def mark_failed(error_type: str) -> None:
    """Mark the current span as failed, where no exception passes through it."""
    _mark(trace.get_current_span(), error_type)


def set_attributes(**attributes: Attribute) -> None:
    """Set attributes of the current span; use `**{names...: value}` for dotted names."""
    trace.get_current_span().set_attributes(attributes)


def attach(traceparent: str | None, tracestate: str | None = None) -> AbstractContextManager[Span]:
    """Make a caller's context the current one for a block.

    Without a header, or with a malformed one, the block has no parent: the next span starts a new
    trace. A context that says "not sampled" stays so.
    """
    return Attached(_extract(traceparent, tracestate))


def traceparent() -> tuple[str | None, str | None]:
    """Return the current context as W3C `traceparent` and `tracestate`, None if there is none."""
    quiet = quiet_span()
    if quiet is not None:
        return quiet.traceparent, None
    current = current_span().get_span_context()
    if not current.is_valid:
        return None, None
    parent = f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags:02x}"
    return parent, current.trace_state.to_header() if current.trace_state else None


def trace_id() -> str | None:
    """Return the id of the current trace, 32 hex digits."""
    quiet = quiet_span()
    if quiet is not None:
        return quiet.trace_id
    context = current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def otlp_enabled(signal: str) -> bool:
    """Return whether the standard environment names an endpoint for `signal` (TRACES, METRICS)."""
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name) for name in variables)


def make_tracer_provider(resource: Resource) -> TracerProvider | QuietTracerProvider:
    """Return a provider that makes ids for every trace, and exports them where OTLP is set up.

    The queue of finished spans is bounded; an unreachable collector costs spans, never requests.
    """
    if not otlp_enabled("TRACES"):
        return QuietTracerProvider()
    # The exporter brings an HTTP client: it is loaded only where it is used.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )

    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(
            OTLPSpanExporter(),
            max_queue_size=_unless_set("OTEL_BSP_MAX_QUEUE_SIZE", _QUEUE_SPANS),
            schedule_delay_millis=_unless_set("OTEL_BSP_SCHEDULE_DELAY", _EXPORT_EVERY_MS),
        )
    )
    return provider


def _tracer() -> trace.Tracer:
    provider = trace.get_tracer_provider()
    if isinstance(provider, QuietTracerProvider):
        # The general way looks at warnings and schemas each time.
        return provider.get_tracer()
    return trace.get_tracer(_SCOPE)


def _unless_set(variable: str, value: int) -> int | None:
    """Return our choice, or None where the operator's variable decides."""
    return None if os.environ.get(variable) else value


def _extract(traceparent: str | None, tracestate: str | None) -> Context:
    if not traceparent:
        return Context()
    plain = None if tracestate else _PLAIN.fullmatch(traceparent)
    if plain is not None and not recording() and not _NOBODY.search(traceparent):
        return QuietSpan(traceparent).context()
    if plain is not None:
        caller = SpanContext(
            trace_id=int(plain[1], 16),
            span_id=int(plain[2], 16),
            is_remote=True,
            trace_flags=TraceFlags(int(plain[3], 16)),
        )
        return trace.set_span_in_context(NonRecordingSpan(caller), Context())
    carrier = {"traceparent": traceparent}
    if tracestate:
        carrier["tracestate"] = tracestate
    return _propagator.extract(carrier, context=Context())


def _error_type(error: BaseException) -> str:
    match error:
        case PdbusError():
            return str(error.code)
        case asyncio.CancelledError() | GeneratorExit():
            return str(ErrorCode.CANCELLED)
        case _:
            return type(error).__name__


def _mark(failed: Span, error_type: str) -> None:
    failed.set_attribute(ERROR_TYPE, error_type)
    failed.set_status(Status(StatusCode.ERROR))


def _to_ns(unix_ms: float) -> int:
    return int(unix_ms * 1_000_000)
