"""A tracer for processes that export nothing: ids and contexts without the cost of records.

Every request has a trace id in its logs and records, and a caller's context is passed on as it
came, whether spans are exported or not. What a span would record is dropped where it is made.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

__all__ = ["Attached", "QuietSpan", "QuietTracerProvider", "current_span", "quiet_span"]

(_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())
"""Where a context keeps its span."""


_quiet: ContextVar[QuietSpan | None] = ContextVar("pdbus-quiet-span", default=None)
"""The current span where that is a quiet one: what OpenTelemetry's own context would tell in more
steps. Whatever makes a context the current one here sets both."""

quiet_span = _quiet.get
"""Return the current span where that is a quiet one; then nothing is recorded in this process."""


def current_span() -> Span:
    """Return the current span, as `get_current_span` does for whoever put in a span."""
    found = quiet_span()
    if found is not None:
        return found
    return cast("Span", otel_context.get_current().get(_KEY, trace.INVALID_SPAN))


class Attached:
    """Make a context the current one for a block; gives the span that is then the current one."""

    __slots__ = ("_before", "_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> Span:
        self._before = quiet_span()
        found = cast("Span", self._context.get(_KEY, trace.INVALID_SPAN))
        _quiet.set(found if type(found) is QuietSpan else None)
        self._token = otel_context.attach(self._context)
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        otel_context.detach(self._token)
        _quiet.set(self._before)


class QuietSpan(NonRecordingSpan):
    """A span that is nothing but its `traceparent`: it is read as it came, and passed on so.

    As a block it does nothing: it is the current span already.
    """

    def __init__(self, traceparent: str) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.traceparent = traceparent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        return

    @property
    def trace_id(self) -> str:
        """The id of its trace, 32 hex digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """The id of the span that it stands for, 16 hex digits."""
        return self.traceparent[36:52]

    def context(self) -> Context:
        """Return a context with nothing but this span."""
        return Context({_KEY: self})

    def get_span_context(self) -> SpanContext:
        """Return what it says, for OpenTelemetry's own readers."""
        _, trace_id, span_id, flags = self.traceparent.split("-")
        return SpanContext(
            trace_id=int(trace_id, 16),
            span_id=int(span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(int(flags, 16)),
        )


class QuietTracerProvider(trace.TracerProvider):
    """Gives one tracer to all."""

    def __init__(self) -> None:
        self._tracer = _QuietTracer()

    def block(self) -> AbstractContextManager[Span]:
        """Return what runs a block within the current trace, or within a new one."""
        return quiet_span() or _Block(self._tracer)

    def within(self, caller: Context) -> Attached:
        """Return what runs a block within a caller's trace, or within a new one if it has none."""
        found = caller.get(_KEY)
        if found is None or not cast("Span", found).get_span_context().is_valid:
            return Attached(self._tracer.root().context())
        return Attached(caller)

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        """Return the tracer."""
        return self._tracer

    def shutdown(self) -> None:
        """Do nothing: there is nothing to export."""


class _Block:
    """A block of work: it has its parent's ids, or ids of its own where it has no parent."""

    __slots__ = ("_attached", "_tracer")

    def __init__(self, tracer: _QuietTracer) -> None:
        self._tracer = tracer
        self._attached: Attached | None = None

    def __enter__(self) -> Span:
        current = current_span()
        context = current.get_span_context()
        if context.is_valid:
            # It is the current one already.
            return current if type(current) is NonRecordingSpan else NonRecordingSpan(context)
        made = self._tracer.root()
        self._attached = Attached(trace.set_span_in_context(made))
        self._attached.__enter__()
        return made

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._attached is not None:
            self._attached.__exit__(kind, error, where)


class _QuietTracer(trace.Tracer):
    """Spans are their parents' contexts; a root gets ids of its own."""

    def __init__(self) -> None:
        self._ids = RandomIdGenerator()

    def start_span(  # pyright: ignore[reportIncompatibleMethodOverride] - the rest is not recorded
        self, name: str, context: Context | None = None, **kwargs: Any
    ) -> Span:
        parent = trace.get_current_span(context).get_span_context()
        return NonRecordingSpan(parent if parent.is_valid else self._root())

    # The interface wants a decorator too, which nobody here uses.
    @contextmanager
    def start_as_current_span(  # pyright: ignore[reportIncompatibleMethodOverride] - as above
        self, name: str, context: Context | None = None, **kwargs: Any
    ) -> Generator[Span]:
        current = trace.get_current_span(context)
        if context is None and current.get_span_context().is_valid:
            # It is the current one already.
            yield NonRecordingSpan(current.get_span_context())
            return
        made = self.start_span(name, context)
        with Attached(trace.set_span_in_context(made, context)):
            yield made

    def root(self) -> QuietSpan:
        """Return a span of a new trace."""
        trace_id, span_id = self._ids.generate_trace_id(), self._ids.generate_span_id()
        return QuietSpan(f"00-{trace_id:032x}-{span_id:016x}-01")

    def _root(self) -> SpanContext:
        return SpanContext(
            trace_id=self._ids.generate_trace_id(),
            span_id=self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
