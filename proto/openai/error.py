"""The one shape of every error over HTTP."""

from __future__ import annotations

from proto.errors import PdbusError
from proto.openai.api import Answer

__all__ = ["ErrorBody", "ErrorInfo", "error_body"]


class ErrorInfo(Answer, frozen=True, kw_only=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    """The field of the request at fault."""
    code: str | None


class ErrorBody(Answer, frozen=True, kw_only=True):
    """OpenAI's nested error, as a body or as an event of a stream."""

    error: ErrorInfo


def error_body(error: PdbusError) -> ErrorBody:
    """Return what a client may read of a failure."""
    return ErrorBody(
        error=ErrorInfo(
            message=error.public_text,
            type=error.spec.kind,
            param=error.param,
            code=str(error.code),
        )
    )
