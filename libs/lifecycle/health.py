"""The health port: /livez, /readyz and /metrics on the loopback interface.

A few lines of HTTP/1.1 on asyncio's streams: it must answer from a process' first second on, in
services that load no web framework.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec

from libs.telemetry import metrics_text

__all__ = ["HealthServer", "Readiness"]

Readiness = tuple[bool, str]
"""Whether work may come, and if not, why in words for an operator."""

_HOST = "127.0.0.1"
_READ_TIMEOUT_S = 5.0
_HEAD_BYTES = 8192
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"

Answer = tuple[HTTPStatus, str, bytes]


class HealthServer:
    """Answers probes and scrapes of one process.

    Args:
        port: 0 takes a free one; `port` tells which.
        readiness: asked at each probe.
        metrics: text that is appended to /metrics, such as an engine's own metrics.
        collect: gives /metrics in place of this process' own, for who speaks for others.
    """

    def __init__(
        self,
        *,
        port: int,
        readiness: Callable[[], Readiness],
        metrics: Callable[[], str] | None = None,
        collect: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._wanted = port
        self._readiness = readiness
        self._metrics = metrics
        self._collect = collect
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        if self._server is None:
            return self._wanted
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(
            self._serve, _HOST, self._wanted, limit=_HEAD_BYTES
        )

    async def close(self) -> None:
        """Stop listening; open exchanges end with their connections."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_render(head, *await self._answer(head)))
                await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            # A probe that hangs up, stalls or talks nonsense gets no answer.
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                # The peer may be gone already; there is nothing left to tell it.
                await asyncio.wait_for(writer.wait_closed(), _READ_TIMEOUT_S)

    async def _answer(self, head: bytes) -> Answer:
        match head.split(b"\r\n", 1)[0].decode("latin-1").split(" "):
            case ["GET" | "HEAD", target, "HTTP/1.0" | "HTTP/1.1"]:
                return await self._page(target.split("?", 1)[0])
            case [_, _, "HTTP/1.0" | "HTTP/1.1"]:
                return _text(HTTPStatus.METHOD_NOT_ALLOWED)
            case _:
                return _text(HTTPStatus.BAD_REQUEST)

    async def _page(self, path: str) -> Answer:
        match path:
            case "/livez":
                return HTTPStatus.OK, _JSON, msgspec.json.encode({"alive": True})
            case "/readyz":
                ready, reason = self._readiness()
                status = HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE
                return status, _JSON, msgspec.json.encode({"ready": ready, "reason": reason})
            case "/metrics":
                # Collecting reads files of the kernel and may render many series.
                collect = self._collect
                text = await (collect() if collect else asyncio.to_thread(metrics_text))
                own = self._metrics() if self._metrics is not None else ""
                return HTTPStatus.OK, _TEXT, (text + own).encode()
            case _:
                return _text(HTTPStatus.NOT_FOUND)


def _text(status: HTTPStatus) -> Answer:
    return status, _TEXT, f"{status.phrase}\n".encode()


def _render(head: bytes, status: HTTPStatus, kind: str, body: bytes) -> bytes:
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "connection: close",
    )
    start = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return start if head.startswith(b"HEAD ") else start + body
