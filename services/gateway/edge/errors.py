"""Every failure over HTTP in one shape: OpenAI's nested error, with retry headers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from proto.errors import ErrorCode, PdbusError
from proto.openai.error import error_body
from services.gateway.edge.exchange import Exchange, exchange_of
from services.gateway.edge.reply import Header, send_json

__all__ = ["Net", "on_http_exception", "retry_headers", "send_error"]

_DEFAULT_RETRY_S = 1.0
_WAIT_STATUSES = frozenset({429, 503})
_SDK_RETRIES = frozenset({408, 409, 429})
_SERVER_ERROR = 500

_BY_STATUS = {
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    413: ErrorCode.REQUEST_TOO_LARGE,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
}


async def send_error(
    exchange: Exchange, send: Send, error: PdbusError, headers: Iterable[Header] = ()
) -> None:
    """Answer an exchange whose head has not been sent yet with a failure."""
    exchange.failure = error
    await send_json(
        exchange,
        send,
        error_body(error),
        status=error.spec.http,
        headers=[*retry_headers(error), *headers],
    )


def retry_headers(error: PdbusError) -> list[Header]:
    """Return what tells a client whether and when to try again."""
    status = error.spec.http
    headers: list[Header] = []
    if status in _SDK_RETRIES or status >= _SERVER_ERROR:
        headers.append((b"x-should-retry", b"true" if error.spec.retryable else b"false"))
    wait_s = error.retry_after_s
    if wait_s is None and status in _WAIT_STATUSES:
        wait_s = _DEFAULT_RETRY_S
    if wait_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(wait_s))).encode()))
        headers.append((b"retry-after-ms", str(max(1, math.ceil(wait_s * 1000))).encode()))
    return headers


async def on_http_exception(request: Request, exception: Exception) -> Response:
    """Turn what starlette's router raises (unknown path, wrong method) into our shape."""
    if not isinstance(exception, HTTPException):
        raise exception
    code = _BY_STATUS.get(exception.status_code, ErrorCode.INVALID_REQUEST)
    return _response(request, PdbusError(code), exception.headers or {})


class Net:
    """Middleware around all others: answers for exceptions that nobody expected.

    It lets them go on, as the server logs them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one exchange."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if scope["type"] == "http" and exchange_of(scope).status is None:
                bug = PdbusError(ErrorCode.INTERNAL, type(error).__name__)
                await _response(Request(scope), bug, {})(scope, receive, send)
            raise


def _response(request: Request, error: PdbusError, headers: Mapping[str, str]) -> Response:
    exchange = exchange_of(request.scope)
    exchange.failure = error
    exchange.status = error.spec.http
    exchange.complete = True
    own = [*exchange.head(), *retry_headers(error)]
    return Response(
        msgspec.json.encode(error_body(error)),
        status_code=error.spec.http,
        media_type="application/json",
        headers={**{name.decode(): value.decode() for name, value in own}, **headers},
    )
