"""What clients say of a request in its headers."""

from __future__ import annotations

import re

from proto.errors import ErrorCode, PdbusError
from proto.ledger import Mode

__all__ = ["KEY_HEADER", "MODE_HEADER", "key_of", "mode_of"]

MODE_HEADER = "x-pdbus-mode"
KEY_HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def mode_of(value: str | None) -> Mode | None:
    """Return the mode that a client asks for with the header `x-pdbus-mode`.

    Raises:
        PdbusError: it is none.
    """
    if value is None or value == "auto":
        return None
    try:
        return Mode(value)
    except ValueError as error:
        raise PdbusError(
            ErrorCode.INVALID_VALUE,
            f"Invalid header '{MODE_HEADER}': auto, disaggregated or aggregated is expected.",
            param=MODE_HEADER,
        ) from error


def key_of(value: str | None) -> str | None:
    """Return the client's idempotency key.

    Raises:
        PdbusError: it is longer than 255 characters, or not printable ASCII without spaces.
    """
    if value is None:
        return None
    if not _KEY.fullmatch(value):
        raise PdbusError(
            ErrorCode.INVALID_VALUE,
            f"Invalid header '{KEY_HEADER}': 1 to 255 printable ASCII characters are expected.",
            param=KEY_HEADER,
        )
    return value
