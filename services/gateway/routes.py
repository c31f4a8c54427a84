"""The HTTP face: which path is answered by what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from libs.clock.api import Clock
from libs.telemetry import gauge, names
from proto import PROTO_VERSION
from services.gateway.api import Calls, FleetView
from services.gateway.edge.errors import Net, on_http_exception
from services.gateway.edge.exchange import Exchanges
from services.gateway.edge.health import (
    LiveEndpoint,
    MetricsEndpoint,
    ReadyEndpoint,
    VersionEndpoint,
)
from services.gateway.openai import (
    ChatApi,
    CompletionApi,
    Detokenizing,
    EdgeRules,
    Endpoint,
    ModelEndpoint,
    ModelsEndpoint,
    ResponseApi,
    Seat,
    Texts,
    Tokenizing,
    WordEndpoint,
)
from services.gateway.openapi import OpenApiEndpoint
from services.gateway.tenants import Directory, Door

__all__ = ["Identity", "http_app"]

_API_ROUTES = {
    path: path
    for path in (
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models"),
        *("/tokenize", "/detokenize"),
    )
}
"""Paths that may be refused before their endpoint is known, each its own label."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What this gateway says of itself."""

    instance: str
    version: str


def http_app(  # noqa: PLR0913 - what stands behind the paths
    *,
    calls: Calls,
    fleet: FleetView,
    texts: Texts,
    clock: Clock,
    rules: EdgeRules,
    identity: Identity,
    directory: Directory | None = None,
    metrics: Callable[[], Awaitable[bytes]] | None = None,
) -> ASGIApp:
    """Return the ASGI app of a gateway.

    Args:
        directory: keys and tenants; None lets everybody in.
        metrics: gives those of all processes of this gateway; None for our own.
    """
    created = clock.unix_ms() // 1000
    seat = Seat(calls=calls, fleet=fleet, texts=texts, clock=clock, rules=rules, running=set())
    gauge(names.GATEWAY_INFLIGHT, lambda: seat.inflight)
    gauge(names.GATEWAY_QUEUED, lambda: seat.placing)
    chat = Endpoint(ChatApi(), seat)
    completions = Endpoint(CompletionApi(), seat)
    responses = Endpoint(ResponseApi(), seat)
    tokenize = WordEndpoint(Tokenizing(clock), texts, rules)
    detokenize = WordEndpoint(Detokenizing(), texts, rules)
    version = VersionEndpoint(
        version=identity.version, protocol=PROTO_VERSION, instance=identity.instance
    )
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/v1/models", ModelsEndpoint(texts, created=created), methods=["GET"]),
        Route("/v1/models/{model:path}", ModelEndpoint(texts, created=created), methods=["GET"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/livez", LiveEndpoint(), methods=["GET"]),
        Route("/readyz", ReadyEndpoint(fleet, "/readyz"), methods=["GET"]),
        Route("/health", ReadyEndpoint(fleet, "/health"), methods=["GET"]),
        Route("/openapi.json", OpenApiEndpoint(identity.version), methods=["GET"]),
        Route("/version", version, methods=["GET"]),
        Route("/metrics", MetricsEndpoint(metrics), methods=["GET"]),
    ]
    # The busiest paths, which are known as a whole.
    direct = {
        ("POST", "/v1/chat/completions"): chat,
        ("POST", "/v1/completions"): completions,
        ("POST", "/v1/responses"): responses,
    }
    app: ASGIApp = _Switch(_Routed(routes), direct=direct)
    if directory is not None:
        app = Door(app, directory=directory, routes=_API_ROUTES)
    return Net(Exchanges(app, clock=clock))


class _Routed(Starlette):
    """Starlette within our own middleware: what nobody expected is for that to answer."""

    def __init__(self, routes: Sequence[Route]) -> None:
        super().__init__(routes=routes)
        # A redirect to a path without the slash would turn an unknown path into one that is known.
        self.router.redirect_slashes = False

    def build_middleware_stack(self) -> ASGIApp:
        """Return the router, with our answer to what it refuses."""
        return ExceptionMiddleware(self.router, handlers={HTTPException: on_http_exception})


class _Switch:
    """Middleware that hands some exchanges to their endpoint at once.

    An application of starlette wraps the `send` of an exchange, and so adds to the cost of each
    write; what its routing does is not needed for a path that is known as a whole.

    Args:
        direct: endpoints by method and path.
    """

    def __init__(self, app: ASGIApp, *, direct: Mapping[tuple[str, str], ASGIApp]) -> None:
        self._app = app
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one exchange."""
        app = self._app
        if scope["type"] == "http":
            app = self._direct.get((scope["method"], scope["path"]), app)
        await app(scope, receive, send)
