"""`POST /v1/chat/completions`: validate, template, tokenize, call, answer.

Nothing is published on the bus before the whole request has been found valid.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
from proto.ids import tenant_hash
from services.gateway.api import Calls, FleetView
from services.gateway.edge import (
    ClientGone,
    Exchange,
    exchange_of,
    read_body,
    send_error,
    while_present,
)
from services.gateway.edge.exchange import header
from services.gateway.edge.presence import SLOW_CLIENT
from services.gateway.edge.server import ABORT
from services.gateway.openai.answer import ChatAnswer
from services.gateway.openai.ask import Asked, CallRules, ask_chat, key_of, mode_of
from services.gateway.openai.sse import error_frame
from services.gateway.openai.tally import Stage, Tally
from services.gateway.openai.texts import INLINE_CHARS, Texts
from services.gateway.openai.validate import decode_chat

__all__ = ["ChatEndpoint", "EdgeRules"]

_ROUTE = "/v1/chat/completions"
_LAST_WORDS_S = 1.0
_TENANT = tenant_hash("anonymous")
"""Until there are API keys, everybody is one tenant."""


@dataclass(frozen=True, slots=True)
class EdgeRules:
    """What the operator decides about every HTTP exchange; times in seconds."""

    max_body_bytes: int
    body_timeout_s: float
    ping_s: float
    """A stream that has been silent for so long gets a comment."""
    slow_client_s: float
    """A client that takes longer to read one write is given up."""
    expose_placement: bool
    """Whether answers name the workers in `x-pdbus-*` headers."""
    call: CallRules


class ChatEndpoint:
    """The endpoint, as an ASGI app."""

    def __init__(
        self, *, calls: Calls, fleet: FleetView, texts: Texts, clock: Clock, rules: EdgeRules
    ) -> None:
        self._calls = calls
        self._fleet = fleet
        self._texts = texts
        self._clock = clock
        self._rules = rules
        self._running: list[Tally] = []

    @property
    def inflight(self) -> int:
        """Requests that run now."""
        return len(self._running)

    @property
    def placing(self) -> int:
        """Requests that wait for a place."""
        return sum(tally.stage is Stage.PLACE for tally in tuple(self._running))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = exchange_of(scope)
        exchange.route = _ROUTE
        tally = Tally(self._clock, exchange.started_s, "chat")
        self._running.append(tally)
        try:
            asked = await self._ask(exchange, tally, scope, receive)
            await self._answer(asked, exchange, tally, receive, send)
        except PdbusError as error:
            await _fail(exchange, send, error)
        except ClientGone as gone:
            exchange.abandoned = str(gone)
            if exchange.abandoned == SLOW_CLIENT and ABORT in scope:
                # What is still buffered would wait for a reader that does not come.
                scope[ABORT]()
        except asyncio.CancelledError:
            # The process ends: the client is told, if it reads.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await _fail(exchange, send, PdbusError(ErrorCode.DRAINING))
            raise
        finally:
            self._running.remove(tally)
            tally.report(exchange, f"chatcmpl-{exchange.rid}")

    async def _ask(self, exchange: Exchange, tally: Tally, scope: Scope, receive: Receive) -> Asked:
        readiness = self._fleet.readiness()
        if not readiness.ok:
            raise PdbusError(readiness.code, readiness.reason)
        tally.stage = Stage.BODY
        body = await read_body(
            scope,
            receive,
            limit=self._rules.max_body_bytes,
            timeout_s=self._rules.body_timeout_s,
        )
        request = decode_chat(body)
        tally.stage = Stage.PROMPT
        asking = ask_chat(
            request,
            rid=exchange.rid,
            tenant=_TENANT,
            mode=mode_of(header(scope, b"x-pdbus-mode")),
            key=key_of(header(scope, b"idempotency-key")),
            texts=self._texts,
            clock=self._clock,
            rules=self._rules.call,
        )
        # A long prompt takes seconds to encode: its client may leave meanwhile.
        long = len(body) > INLINE_CHARS
        asked = await (while_present(asking, receive, exchange) if long else asking)
        tally.ask(asked.call, streaming=asked.stream)
        return asked

    async def _answer(
        self, asked: Asked, exchange: Exchange, tally: Tally, receive: Receive, send: Send
    ) -> None:
        answer = ChatAnswer(
            asked=asked,
            calls=self._calls,
            exchange=exchange,
            tally=tally,
            clock=self._clock,
            expose_placement=self._rules.expose_placement,
        )
        if not asked.stream:
            await while_present(answer.whole(send), receive, exchange)
            return
        events = answer.event_stream(send)
        pulse = events.pulse(ping_s=self._rules.ping_s, slow_s=self._rules.slow_client_s)
        await while_present(answer.stream(events), receive, exchange, pulse)


async def _fail(exchange: Exchange, send: Send, error: PdbusError) -> None:
    """Tell the client of a failure: an HTTP error, or an event once the stream has begun."""
    if exchange.complete:
        return
    if exchange.status is None:
        await send_error(exchange, send, error)
        return
    exchange.failure = error
    exchange.complete = True
    await send({"type": "http.response.body", "body": error_frame(error)})
