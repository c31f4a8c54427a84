"""Whether this process lives, whether it can serve, and its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from libs.telemetry import metrics_text
from proto.errors import ErrorCode, PdbusError
from services.gateway.api import FleetView
from services.gateway.edge.errors import send_error
from services.gateway.edge.exchange import exchange_of
from services.gateway.edge.reply import TEXT, send_bytes, send_json

__all__ = ["LiveEndpoint", "MetricsEndpoint", "ReadyEndpoint", "VersionEndpoint"]

_UNAVAILABLE = 503


class LiveEndpoint:
    """`/livez`: the loop runs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        exchange = exchange_of(scope)
        exchange.route = "/livez"
        await send_json(exchange, send, {"status": "live"})


class ReadyEndpoint:
    """`/readyz` and `/health`: requests can be served, or a 503 with the reason why not."""

    def __init__(self, fleet: FleetView, route: str) -> None:
        self._fleet = fleet
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        exchange = exchange_of(scope)
        exchange.route = self._route
        readiness = self._fleet.readiness()
        if readiness.ok:
            await send_json(exchange, send, {"status": "ready"})
            return
        body = {"status": str(readiness.code), "reason": readiness.reason}
        headers = [(b"retry-after", b"1")]
        await send_json(exchange, send, body, status=_UNAVAILABLE, headers=headers)


class VersionEndpoint:
    """`/version`: what runs here."""

    def __init__(self, *, version: str, protocol: int, instance: str) -> None:
        self._body = {"version": version, "protocol": protocol, "instance": instance}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        exchange = exchange_of(scope)
        exchange.route = "/version"
        await send_json(exchange, send, self._body)


class MetricsEndpoint:
    """`/metrics`: metrics in Prometheus' text format.

    Args:
        collect: gives those of all processes of this gateway; None where this is the only one.
    """

    def __init__(self, collect: Callable[[], Awaitable[bytes]] | None = None) -> None:
        self._collect = collect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        exchange = exchange_of(scope)
        exchange.route = "/metrics"
        if self._collect is None:
            # Collecting reads files and asks every gauge: not on the loop of the streams.
            text = await asyncio.to_thread(metrics_text)
            await send_bytes(exchange, send, text.encode(), kind=TEXT)
            return
        try:
            body = await self._collect()
        except (OSError, TimeoutError):
            # Part of the figures would look like a fall of all counters.
            error = PdbusError(ErrorCode.STARTING, retry_after_s=1)
            await send_error(exchange, send, error)
            return
        await send_bytes(exchange, send, body, kind=TEXT)
