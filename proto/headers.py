"""The NATS headers that are set or read, in their exact case."""

from __future__ import annotations

__all__ = [
    "EXPECTED_SEQUENCE",
    "MESSAGE_ID",
    "SERVICE_ERROR",
    "SERVICE_ERROR_CODE",
    "TRACEPARENT",
    "TRACESTATE",
]

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
SERVICE_ERROR = "Nats-Service-Error"
SERVICE_ERROR_CODE = "Nats-Service-Error-Code"
