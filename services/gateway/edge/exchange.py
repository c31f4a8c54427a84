"""One HTTP request and what became of it: identity, span, log line, metrics."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from libs.clock.api import Clock
from libs.telemetry import (
    Span,
    SpanKind,
    attributes,
    caller_span,
    get_logger,
    log_context,
    mark_failed,
    names,
    observe,
    recording,
    set_attributes,
    trace_id,
)
from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId, new_request_id
from services.gateway.edge.connection import BODY, PRESENCE, Presence
from services.gateway.edge.visitor import ANYBODY, Visitor

__all__ = ["OTHER", "Exchange", "Exchanges", "exchange_of", "header"]

OTHER = "other"
"""The route of everything that is none: paths from outside never become labels."""

_KEY = "pdbus.exchange"
_HEADERS = "pdbus.headers"
"""The headers of the request by their names, once one was looked for."""
_MAX_ID = 128
_SERVER_ERROR = 500
_CLIENT_LEFT = 499
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_API = "/v1/"


class Exchange(msgspec.Struct, eq=False):
    """One HTTP request, from its head to its log line."""

    rid: RequestId
    request_id: str
    """`x-request-id`: the caller's, or `rid`."""
    started_s: float
    route: str = OTHER
    status: int | None = None
    """Set when the head of the answer is sent."""
    complete: bool = False
    """The last byte of the answer has been handed over: a client may now hang up."""
    abandoned: str = ""
    """Why the client no longer gets an answer: `client_gone` or `slow_client`."""
    failure: PdbusError | None = None
    visitor: Visitor = ANYBODY
    """Who asks."""
    presence: Presence | None = None
    """Tells when the client leaves, where the server knows."""
    facts: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Key-values for the log line."""

    def head(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that every answer has: the identity, and what is left of limits."""
        return [(b"x-request-id", self.request_id.encode()), *self.visitor.headers()]

    @property
    def status_or_fate(self) -> int:
        """The status sent; else 499 if the client left, 500 if a bug ended the exchange."""
        if self.status is not None:
            return self.status
        return _CLIENT_LEFT if self.abandoned else _SERVER_ERROR

    @property
    def inner_detail(self) -> str | None:
        """What is known of a failure; nothing where that may quote the client's own words."""
        if self.failure is None or self.failure.spec.detail_is_public:
            return None
        return self.failure.detail or None

    @property
    def outcome(self) -> str:
        """One word for how it ended."""
        if self.abandoned:
            return self.abandoned
        if self.failure is not None:
            return "failed" if self.failure.spec.http >= _SERVER_ERROR else "refused"
        return "ok" if self.complete else "failed"


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange that `Exchanges` has put into the scope."""
    exchange: Exchange = scope[_KEY]
    return exchange


def header(scope: Scope, name: bytes) -> str | None:
    """Return a request header (its last value), or None; `name` in lower case."""
    headers: dict[bytes, bytes] | None = scope.get(_HEADERS)
    if headers is None:
        headers = scope[_HEADERS] = dict(scope["headers"])
    found = headers.get(name)
    return None if found is None else found.decode("latin-1")


class Exchanges:
    """Middleware that opens an exchange for each HTTP request and accounts for it at its end."""

    def __init__(self, app: ASGIApp, *, clock: Clock) -> None:
        self._app = app
        self._clock = clock
        self._logger: FilteringBoundLogger | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one exchange."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = self._open(scope)
        scope[_KEY] = exchange
        with log_context(request_id=exchange.rid):
            try:
                if scope["path"].startswith(_API):
                    await self._traced(exchange, scope, receive, send)
                else:
                    await self._app(scope, receive, send)
            finally:
                self._close(exchange, scope)
                # It knows the scope in turn, and what goes in circles stays until a collection.
                scope.pop(BODY, None)

    def _open(self, scope: Scope) -> Exchange:
        rid = new_request_id(self._clock.unix_ms(), self._clock.entropy)
        given = header(scope, b"x-request-id")
        return Exchange(
            rid=rid,
            request_id=given if given is not None and _usable(given) else rid,
            started_s=self._clock.monotonic(),
            presence=scope.get(PRESENCE),
        )

    async def _traced(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        parent = header(scope, b"traceparent"), header(scope, b"tracestate")
        method = _method(scope)
        facts = {
            attributes.HTTP_METHOD: method,
            attributes.URL_PATH: scope["path"],
            attributes.REQUEST_ID: exchange.rid,
        }
        with caller_span(method, parent, facts, kind=SpanKind.SERVER) as current:
            # The log line is written when the span has ended.
            exchange.facts["trace_id"] = trace_id()
            try:
                await self._app(scope, receive, send)
            finally:
                if recording():
                    _describe(current, exchange, scope)

    def _close(self, exchange: Exchange, scope: Scope) -> None:
        duration_s = self._clock.monotonic() - exchange.started_s
        failure = str(exchange.failure.code) if exchange.failure is not None else ""
        method, status = _method(scope), exchange.status_or_fate
        observe(
            names.HTTP_REQUEST_DURATION,
            duration_s,
            **{
                attributes.HTTP_METHOD: method,
                attributes.HTTP_ROUTE: exchange.route,
                attributes.HTTP_STATUS: status,
                attributes.ERROR_TYPE: failure,
            },
        )
        logger = self._logger
        if logger is None:
            # To make one takes as long as to write a line.
            logger = self._logger = get_logger().bind()
        # Probes come every second: they are told apart from requests by the level.
        write = logger.info if scope["path"].startswith(_API) else logger.debug
        write(
            "request served",
            # With a key the request may be an older one than this exchange.
            request_id=exchange.rid,
            method=method,
            route=exchange.route,
            status=status,
            outcome=exchange.outcome,
            error_code=failure or None,
            detail=exchange.inner_detail,
            duration_s=round(duration_s, 4),
            client_request_id=None if exchange.request_id == exchange.rid else exchange.request_id,
            **exchange.facts,
        )


def _usable(value: str) -> bool:
    return 0 < len(value) <= _MAX_ID and value.isascii() and value.isprintable()


def _describe(current: Span, exchange: Exchange, scope: Scope) -> None:
    """Tell the current span what became of its exchange."""
    if exchange.route != OTHER:
        current.update_name(f"{_method(scope)} {exchange.route}")
        set_attributes(**{attributes.HTTP_ROUTE: exchange.route})
    status = exchange.status_or_fate
    set_attributes(**{attributes.HTTP_STATUS: status, attributes.REQUEST_ID: exchange.rid})
    _mark(exchange)


def _mark(exchange: Exchange) -> None:
    """Tell the current span what went wrong; a refusal is the client's fault, not a failed span."""
    if exchange.abandoned:
        slow = exchange.abandoned == ErrorCode.SLOW_CLIENT
        mark_failed(str(ErrorCode.SLOW_CLIENT if slow else ErrorCode.CANCELLED))
    elif exchange.failure is not None and exchange.outcome == "failed":
        mark_failed(str(exchange.failure.code))
    elif exchange.failure is not None:
        set_attributes(**{attributes.ERROR_TYPE: str(exchange.failure.code)})


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in _METHODS else "_OTHER"
