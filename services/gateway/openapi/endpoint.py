"""`GET /openapi.json`."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from services.gateway.edge import exchange_of
from services.gateway.edge.reply import send_bytes
from services.gateway.openapi.document import openapi_document

__all__ = ["OpenApiEndpoint"]


class OpenApiEndpoint:
    """The document, made once.

    Args:
        version: that of the program.
    """

    def __init__(self, version: str) -> None:
        self._body = msgspec.json.encode(openapi_document(version))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        exchange = exchange_of(scope)
        exchange.route = "/openapi.json"
        await send_bytes(exchange, send, self._body)
