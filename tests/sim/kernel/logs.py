"""The services' logs go into the trace of the world; a logged traceback is a violation."""

from __future__ import annotations

import traceback
from collections.abc import MutableMapping
from typing import Any

import structlog

from tests.sim.kernel.loop import OWNER
from tests.sim.kernel.trace import Trace

__all__ = ["logs_into"]


def logs_into(trace: Trace) -> None:
    """Send everything that is logged from now on into `trace`."""

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

    structlog.configure(
        processors=[note],
        wrapper_class=structlog.BoundLogger,
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
