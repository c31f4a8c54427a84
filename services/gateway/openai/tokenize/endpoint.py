"""An endpoint that asks no worker: read, find the model, answer."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from proto.errors import ErrorCode, PdbusError
from services.gateway.edge import (
    ClientGone,
    Exchange,
    exchange_of,
    read_body,
    send_error,
    send_json,
    while_present,
)
from services.gateway.openai.bodies import invalid, read_known
from services.gateway.openai.prompts import INLINE_CHARS, Texts
from services.gateway.openai.rules import EdgeRules
from services.gateway.openai.tokenize.words import Model

__all__ = ["WordEndpoint"]


class _Named(Protocol):
    @property
    def model(self) -> str | None: ...


RequestT = TypeVar("RequestT", bound=_Named)


class _Words(Protocol[RequestT]):
    @property
    def route(self) -> str: ...

    def read(self, body: bytes) -> RequestT: ...

    def answer(self, request: RequestT, model: Model) -> msgspec.Struct: ...


class WordEndpoint(Generic[RequestT]):
    """The endpoint, as an ASGI app."""

    def __init__(self, words: _Words[RequestT], texts: Texts, rules: EdgeRules) -> None:
        self._words = words
        self._texts = texts
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = exchange_of(scope)
        exchange.route = self._words.route
        try:
            answer = await self._answer(exchange, scope, receive)
            await send_json(exchange, send, answer)
        except PdbusError as error:
            await send_error(exchange, send, error)
        except ClientGone as gone:
            exchange.abandoned = str(gone)

    async def _answer(self, exchange: Exchange, scope: Scope, receive: Receive) -> msgspec.Struct:
        body = await read_body(
            scope,
            receive,
            limit=self._rules.max_body_bytes,
            timeout_s=self._rules.body_timeout_s,
        )
        request = read_known(
            self._words.read, body, unknown=self._rules.unknown_fields, route=exchange.route
        )
        model = self._model(exchange, request.model)
        if len(body) <= INLINE_CHARS:
            return self._words.answer(request, model)
        # Long texts are not for the loop that carries the streams, and their clients may leave.
        aside = asyncio.to_thread(self._words.answer, request, model)
        return await while_present(aside, receive, exchange)

    def _model(self, exchange: Exchange, name: str | None) -> Model:
        if name is None:
            served = [name for name, _ in self._texts.served() if exchange.visitor.allows(name)]
            if not served:
                raise PdbusError(ErrorCode.NO_WORKER, "no model is served now")
            if len(served) > 1:
                raise invalid("model", "several models are served: name one.")
            name = served[0]
        exchange.visitor.check_model(name)
        text, context_tokens = self._texts.find(name)
        return Model(name, text, context_tokens)
