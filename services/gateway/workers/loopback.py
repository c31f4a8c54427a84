"""One GET to another process on this machine."""

from __future__ import annotations

import asyncio

__all__ = ["fetch"]

_HOST = "127.0.0.1"
_TIMEOUT_S = 3.0
_MOST_BYTES = 16 << 20
_OK = b" 200 "


async def fetch(port: int, path: str) -> bytes:
    """Return the body of a 200.

    Raises:
        OSError: nobody listens, or the answer is something else.
        TimeoutError: it took more than three seconds.
    """
    async with asyncio.timeout(_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(_HOST, port, limit=_MOST_BYTES)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nhost: {_HOST}\r\n\r\n".encode())
            answer = await reader.read()
        finally:
            writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if _OK not in head.split(b"\r\n", 1)[0]:
        raise OSError(f"port {port}: {path} was answered with {head[:40]!r}")
    return body
