"""Answers for HTTP/1.0, which knows no chunks: what has no length ends with its connection."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["until_close"]

_ENDLESS = 1 << 62
"""More bytes than any answer has."""


def until_close(cycle: RequestResponseCycle) -> None:
    """Let an answer without a length be sent as it is; uvicorn would mark chunks in it.

    Args:
        cycle: one exchange of HTTP/1.0 whose answer has not begun; its connection is not kept.
    """
    plain = cycle.send
    endless = False

    async def send(message: Any) -> None:
        nonlocal endless
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            endless = b"content-length" not in names
            if endless:
                cycle.chunked_encoding = False
                cycle.expected_content_length = _ENDLESS
        elif endless and not message.get("more_body", False):
            # What uvicorn still expects is what comes now.
            cycle.expected_content_length = len(message.get("body", b""))
        await plain(message)

    cycle.send = send
