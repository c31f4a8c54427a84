"""The door of the API: nobody comes in without a key, and nobody more often than it allows."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from libs.telemetry import count, names
from proto.errors import ErrorCode, PdbusError
from services.gateway.edge import exchange_of, send_error
from services.gateway.edge.exchange import OTHER, Exchange, header
from services.gateway.tenants.directory import Directory
from services.gateway.tenants.tenant import Tenant

__all__ = ["Door"]

_OPEN = frozenset({"/livez", "/readyz", "/health", "/version", "/metrics", "/openapi.json"})
"""What needs no key; every other path does, whether it exists or not."""
_CHALLENGE = (b"www-authenticate", b"Bearer")


class Door:
    """Middleware within `Exchanges`.

    Args:
        directory: who may come in.
        routes: paths of the API, and the name of each as a label.
    """

    def __init__(self, app: ASGIApp, *, directory: Directory, routes: Mapping[str, str]) -> None:
        self._app = app
        self._directory = directory
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one exchange in, or refuse it."""
        path: str = scope["path"]
        if scope["type"] != "http" or path in _OPEN:
            await self._app(scope, receive, send)
            return
        exchange = exchange_of(scope)
        try:
            tenant = self._enter(self._directory, exchange, scope)
        except PdbusError as error:
            exchange.route = self._routes.get(path, OTHER)
            bad_key = error.code is ErrorCode.INVALID_API_KEY
            count(
                names.GATEWAY_REJECTED,
                endpoint=exchange.route,
                error_code=str(error.code),
                reason="key" if bad_key else "limit",
            )
            await send_error(exchange, send, error, [_CHALLENGE] if bad_key else ())
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if tenant is not None:
                tenant.leave()

    def _enter(self, directory: Directory, exchange: Exchange, scope: Scope) -> Tenant | None:
        """Return who has entered and must leave; looking at lists is not counted."""
        tenant = directory.visitor(header(scope, b"authorization"))
        exchange.visitor = tenant
        if scope["method"] != "POST":
            return None
        tenant.enter()
        return tenant
