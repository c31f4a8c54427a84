"""Structured logs: one JSON object a line, with the ids of the work that wrote it."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager
from contextvars import Token
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from libs.telemetry.quiet import current_span, quiet_span

__all__ = ["LEVELS", "get_logger", "log_context", "setup_logs"]

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
"""Names that a setting may use."""

_METHODS = {"exception": "error", "warn": "warning"}
"""Levels of methods that are called otherwise."""

_FOREIGN = ("nats", "uvicorn", "asyncio", "opentelemetry")


def get_logger() -> FilteringBoundLogger:
    """Return a logger; events are fixed lower-case phrases, facts are key-values."""
    return structlog.get_logger()


def log_context(**values: Any) -> AbstractContextManager[None]:
    """Bind values to every log line of this task, and of tasks that it starts, for a while."""
    return _Bound(values)


class _Bound:
    """A block whose log lines carry some values; what they were before comes back behind it."""

    __slots__ = ("_before", "_values")

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __enter__(self) -> None:
        bound = structlog.contextvars.bind_contextvars(**self._values)
        self._before = {name: token.old_value for name, token in bound.items()}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        # A value that is an ellipsis is none.
        structlog.contextvars.bind_contextvars(
            **{name: ... if old is Token.MISSING else old for name, old in self._before.items()}
        )


def setup_logs(*, service: str, instance: str, level: str, stream: TextIO | None = None) -> None:
    """Write JSON lines to `stream` (standard error), also for the loggers of libraries."""
    out = stream if stream is not None else sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        _identity(service, instance),
        _trace_ids,
        _stamp,
    ]
    render = structlog.processors.JSONRenderer(serializer=_to_json)
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in _FOREIGN:
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True


def _identity(service: str, instance: str) -> structlog.typing.Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("service", service)
        event.setdefault("instance", instance)
        return event

    return add


def _trace_ids(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    quiet = quiet_span()
    if quiet is not None:
        event.setdefault("trace_id", quiet.trace_id)
        event.setdefault("span_id", quiet.span_id)
        return event
    context = current_span().get_span_context()
    if context.is_valid:
        event.setdefault("trace_id", f"{context.trace_id:032x}")
        event.setdefault("span_id", f"{context.span_id:016x}")
    return event


_render_exception = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def _stamp(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add level and time, and turn an exception into data."""
    event["level"] = _METHODS.get(method, method)
    event["time"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return _render_exception(logger, method, event) if "exc_info" in event else event


def _to_json(event: EventDict, **_options: Any) -> str:
    return msgspec.json.encode(event, enc_hook=repr).decode()
