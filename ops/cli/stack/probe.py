"""Asking a process whether it is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

__all__ = ["DRAINING", "Check", "Health", "http_ready", "nats_ready"]

DRAINING = "draining"
"""The reason that a process gives once it was told to end."""

TIMEOUT_S = 2.0
_LIMIT = 65_536


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of one process."""

    ready: bool
    reason: str = ""
    """Why it is not ready, in words for people."""


Check = Callable[[int], Awaitable[Health]]
"""Ask the process that listens on a local port."""

_SILENT = Health(ready=False, reason="starting")


async def http_ready(port: int, path: str = "/readyz") -> Health:
    """Ask for `/readyz`: 200 is ready, everything else carries a reason."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await _exchange(port, f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")
    except (OSError, TimeoutError):
        return _SILENT
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/"):
        return _SILENT
    return Health(ready=head.split(b" ")[1:2] == [b"200"], reason=_reason(body))


async def nats_ready(port: int) -> Health:
    """Wait for the greeting of a nats-server."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                greeting = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return _SILENT
    return Health(ready=greeting.startswith(b"INFO "))


async def _exchange(port: int, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.encode())
        await writer.drain()
        return await reader.read(_LIMIT)
    finally:
        writer.close()


def _reason(body: bytes) -> str:
    try:
        parsed = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace").strip()[:200]
    if isinstance(parsed, dict):
        answer = cast("dict[str, Any]", parsed)
        return str(answer.get("reason") or answer.get("state") or answer.get("status") or "")
    return str(parsed)
