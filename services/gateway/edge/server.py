"""The HTTP server, run inside the loop of the service."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from services.gateway.edge.connection import ABORT, Connection, ConnectionLimits
from services.gateway.edge.turn import Turn

__all__ = ["ABORT", "EdgeServer"]

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
_LAST_WORDS_S = 2.0
"""Time for answers that the grace has cut to tell their clients so."""


class EdgeServer:
    """Serves an ASGI app on one socket; the socket is bound at once.

    Args:
        port: 0 takes a free one; `port` tells which.
        shared: whether other processes listen on the same port, and the kernel deals out clients.
        limits: what one connection may do.
        new_id: makes the request id of an answer to what could not be read.

    Raises:
        OSError: the address cannot be had.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        shared: bool = False,
        limits: ConnectionLimits | None = None,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, reuse_port=shared
        )
        self._socket.setblocking(False)  # noqa: FBT003 - the method's name says what it sets
        connection = partial(
            Connection,
            limits=limits or ConnectionLimits(),
            new_id=new_id or partial(secrets.token_hex, 13),
            turn=Turn(),
        )
        self._config = uvicorn.Config(
            app,
            # Uvicorn calls it as it calls the class.
            http=cast("Any", connection),
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
