"""The HTTP server, run inside the loop of the service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from proto.errors import ErrorCode, PdbusError
from proto.openai.error import error_body

__all__ = ["ABORT", "EdgeServer"]

ABORT = "pdbus.abort"
"""Key of the scope under which a function drops the connection and what it still holds."""

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
_LAST_WORDS_S = 2.0
"""Time for answers that the grace has cut to tell their clients so."""


class EdgeServer:
    """Serves an ASGI app on one socket; the socket is bound at once.

    Args:
        port: 0 takes a free one; `port` tells which.

    Raises:
        OSError: the address cannot be had.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)  # noqa: FBT003 - the method's name says what it sets
        self._config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._server = _Embedded(self._config)
        self._over = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        port: int = self._socket.getsockname()[1]
        return port

    async def serve(self) -> None:
        """Accept until `stop`, then let running answers end."""
        try:
            await self._server.serve(sockets=[self._socket])
            if self._server.server_state.tasks:
                await asyncio.wait(set(self._server.server_state.tasks), timeout=_LAST_WORDS_S)
        finally:
            self._over.set()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, and return when `serve` has ended.

        Args:
            grace_s: how long running answers may go on; the rest is cancelled then.
        """
        self._config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        await self._over.wait()


class _Embedded(uvicorn.Server):
    """Signals belong to the service."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """Sends each write at once, answers unreadable requests in our shape, can drop a client."""

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride] - as in uvicorn
        self, transport: asyncio.Transport
    ) -> None:
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # pyright: ignore[reportGeneralTypeIssues] - ours

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(error_body(PdbusError(ErrorCode.INVALID_REQUEST, msg)))
        head = (
            b"HTTP/1.1 400 Bad Request\r\n"
            b"content-type: application/json\r\n"
            b"content-length: %d\r\n"
            b"connection: close\r\n\r\n"
        )
        self.transport.write(head % len(body) + body)
        self.transport.close()
