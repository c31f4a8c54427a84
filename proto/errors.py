"""The closed table of everything that can go wrong, as users, operators and services see it.

One row a code: HTTP status, OpenAI error type, whether a client may try again, and the text that
the public reads. Details (`PdbusError.detail`) are for logs and events, never for clients, except
for the codes that describe the client's own request (`ErrorSpec.detail_is_public`).
"""

from __future__ import annotations

from proto.base import Message
from proto.error_codes import Cleaner, ErrorCode, ErrorSpec, Stage
from proto.error_table import ERRORS

__all__ = [
    "ERRORS",
    "Cleaner",
    "ErrorCode",
    "ErrorReply",
    "ErrorSpec",
    "PdbusError",
    "Stage",
    "spec_of",
]


def spec_of(code: ErrorCode) -> ErrorSpec:
    """Return the row of a code."""
    return ERRORS[code]


class PdbusError(Exception):
    """A failure with a code from the table; the only exception that services raise on purpose.

    Args:
        code: the row of the table.
        detail: what happened, for logs and events (public only where the row says so).
        param: the field of the client's request at fault.
        retry_after_s: when to try again, where that is known.
    """

    def __init__(
        self,
        code: ErrorCode,
        detail: str = "",
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}" if detail else str(code))
        self.code = code
        self.detail = detail
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def spec(self) -> ErrorSpec:
        """The row of the table."""
        return ERRORS[self.code]

    @property
    def public_text(self) -> str:
        """What a client may read."""
        return self.detail if self.spec.detail_is_public and self.detail else self.spec.text


class ErrorReply(Message, frozen=True, kw_only=True):
    """The body of a failed reply on the bus."""

    code: ErrorCode
    detail: str = ""
    param: str | None = None
    retry_after_s: float | None = None
