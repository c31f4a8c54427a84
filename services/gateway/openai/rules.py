"""What the operator decides about every request of the API."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.api import Recover, UnknownFields

__all__ = ["CallRules", "EdgeRules"]


@dataclass(frozen=True, slots=True)
class CallRules:
    """What the operator decides about every call."""

    request_timeout_s: float
    default_max_tokens: int
    """Answer tokens where the client names no limit (and the context has room)."""
    recover: Recover = Recover.NEVER
    """Whether answers may go on with another decode after their first token."""
    choices_at_once: int = 16
    """Of a request for several choices, so many run at a time."""


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """What the operator decides about every HTTP exchange; times in seconds."""

    max_body_bytes: int
    body_timeout_s: float
    ping_s: float
    """A stream that has been silent for so long gets a comment."""
    slow_client_s: float
    """A client that takes longer to read one write is given up."""
    expose_placement: bool
    """Whether answers name the workers in `x-pdbus-*` headers."""
    call: CallRules
    unknown_fields: UnknownFields = UnknownFields.REFUSE
