"""Logs, traces and metrics, and the registry of all their names.

Everything but `setup_telemetry` may be called in any process, set up or not.
"""

from libs.telemetry import attributes, names
from libs.telemetry.logs import get_logger, log_context
from libs.telemetry.metrics import count, gauge, metrics_text, observe, observer
from libs.telemetry.setup import Telemetry, setup_telemetry
from libs.telemetry.traces import (
    Attribute,
    Span,
    SpanKind,
    attach,
    caller_span,
    linked_root,
    mark_failed,
    record_span,
    recording,
    set_attributes,
    span,
    trace_id,
    traceparent,
)

__all__ = [
    "Attribute",
    "Span",
    "SpanKind",
    "Telemetry",
    "attach",
    "attributes",
    "caller_span",
    "count",
    "gauge",
    "get_logger",
    "linked_root",
    "log_context",
    "mark_failed",
    "metrics_text",
    "names",
    "observe",
    "observer",
    "record_span",
    "recording",
    "set_attributes",
    "setup_telemetry",
    "span",
    "trace_id",
    "traceparent",
]
