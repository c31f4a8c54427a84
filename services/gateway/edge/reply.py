"""Answers in one piece."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.types import Send

from services.gateway.edge.exchange import Exchange

__all__ = ["JSON", "TEXT", "Header", "send_bytes", "send_json"]

Header = tuple[bytes, bytes]

JSON = b"application/json"
TEXT = b"text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""


async def send_json(
    exchange: Exchange,
    send: Send,
    value: object,
    *,
    status: int = 200,
    headers: Iterable[Header] = (),
) -> None:
    """Send a value as JSON with its length, and close the exchange."""
    await send_bytes(exchange, send, msgspec.json.encode(value), status=status, headers=headers)


async def send_bytes(
    exchange: Exchange,
    send: Send,
    body: bytes,
    *,
    status: int = 200,
    kind: bytes = JSON,
    headers: Iterable[Header] = (),
) -> None:
    """Send bytes with their length, and close the exchange."""
    exchange.status = status
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", kind),
                (b"content-length", str(len(body)).encode()),
                *exchange.head(),
                *headers,
            ],
        }
    )
    exchange.complete = True
    await send({"type": "http.response.body", "body": body})
