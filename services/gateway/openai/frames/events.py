"""Single events: pure functions of their data."""

from __future__ import annotations

import msgspec

from proto.errors import PdbusError
from proto.openai.error import error_body

__all__ = ["DONE", "error_frame", "frame"]

DONE = b"data: [DONE]\n\n"

_END = b"\n\n"

_encode = msgspec.json.Encoder().encode


def frame(value: object) -> bytes:
    """Return one event whose data is a value as JSON, which never holds a line break."""
    return b"data: " + _encode(value) + _END


def error_frame(error: PdbusError) -> bytes:
    """Return the event that ends a stream that failed."""
    return frame(error_body(error))
