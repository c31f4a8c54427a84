"""What services tell of themselves: logs go into the trace of the world, spans go nowhere.

A logged traceback is a violation.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import structlog
from opentelemetry import trace as otel

from tests.sim.kernel.loop import OWNER
from tests.sim.kernel.trace import Trace

__all__ = ["logs_into"]


@contextmanager
def logs_into(trace: Trace) -> Iterator[None]:
    """Send everything that is logged in this block into `trace`."""

    def note(
        _logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        domain = OWNER.get()
        who = domain.name if domain else "world"
        if domain is not None and not domain.alive:
            raise structlog.DropEvent
        error = event.pop("exc_info", None)
        facts = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        text = f"{who} {event.get('event')} {facts}"
        if method == "exception" or error:
            trace.violate("exception", f"{text}\n{traceback.format_exc(limit=-6)}")
        else:
            trace.note("log", f"{text}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[note],
        wrapper_class=structlog.BoundLogger,
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    # Trace ids are random, and travel in messages: a world must not depend on what records spans.
    silent = otel.NoOpTracerProvider().get_tracer
    try:
        with mock.patch.object(otel, "get_tracer", silent):
            yield
    finally:
        structlog.configure(**before)
