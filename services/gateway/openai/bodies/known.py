"""Reads a body with all its fields, or, as the operator says, without those that nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from libs.telemetry import count, names
from services.gateway.api import UnknownFields
from services.gateway.openai.fields import UnknownField, without

__all__ = ["read_known"]

RequestT = TypeVar("RequestT")

_MOST = 64
"""Fields that are left out of one request."""


def read_known(
    read: Callable[[bytes], RequestT], body: bytes, *, unknown: UnknownFields, route: str
) -> RequestT:
    """Return the request in a body.

    Args:
        read: reads one, or tells of a field that it does not know.
        unknown: what becomes of such fields.
        route: the endpoint, for the count of what is left out.

    Raises:
        PdbusError: it is not valid; the field at fault is named.
    """
    for _ in range(_MOST if unknown is UnknownFields.IGNORE else 0):
        try:
            return read(body)
        except UnknownField as error:
            body = without(body, error)
            count(names.GATEWAY_IGNORED_FIELDS, endpoint=route)
    return read(body)
