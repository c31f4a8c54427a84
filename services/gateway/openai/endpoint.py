"""An endpoint that generates: validate, template, tokenize, call, answer.

Nothing is published on the bus before the whole request has been found valid.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
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
from services.gateway.edge.visitor import admitted
from services.gateway.openai.answers import Asked, Giving
from services.gateway.openai.bodies import read_known
from services.gateway.openai.frames import error_frame
from services.gateway.openai.prompts import INLINE_CHARS, Texts
from services.gateway.openai.requests import Asker, key_of, mode_of
from services.gateway.openai.rules import EdgeRules
from services.gateway.openai.tally import Stage, Tally

__all__ = ["Api", "Endpoint", "Seat"]

RequestT = TypeVar("RequestT")

_LAST_WORDS_S = 1.0


class Api(Protocol[RequestT]):
    """What differs between endpoints."""

    @property
    def route(self) -> str:
        """The path, as a label."""
        ...

    @property
    def operation(self) -> str:
        """GenAI's word for the endpoint."""
        ...

    @property
    def prefix(self) -> str:
        """What stands before the request's id in the id of an answer."""
        ...

    def read(self, body: bytes) -> RequestT:
        """Return the request in a body.

        Raises:
            PdbusError: it is not valid; the field at fault is named.
        """
        ...

    async def ask(self, request: RequestT, asker: Asker) -> Asked:
        """Return the calls of a request.

        Raises:
            PdbusError: it cannot be carried out.
        """
        ...


@dataclass(frozen=True, slots=True)
class Seat:
    """What all endpoints of a gateway share, and the requests that run in any of them."""

    calls: Calls
    fleet: FleetView
    texts: Texts
    clock: Clock
    rules: EdgeRules
    running: set[Tally]

    @property
    def inflight(self) -> int:
        """Requests that run now."""
        return len(self.running)

    @property
    def placing(self) -> int:
        """Requests that wait for a place."""
        return sum(tally.stage is Stage.PLACE for tally in tuple(self.running))


class Endpoint(Generic[RequestT]):
    """The endpoint, as an ASGI app."""

    def __init__(self, api: Api[RequestT], seat: Seat) -> None:
        self._api = api
        self._seat = seat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        seat, exchange = self._seat, exchange_of(scope)
        exchange.route = self._api.route
        tally = Tally(seat.clock, exchange.started_s, self._api.operation)
        giving: Giving | None = None
        seat.running.add(tally)
        try:
            asked = await self._ask(exchange, tally, scope, receive)
            giving = self._giving(asked, exchange, tally)
            await self._answer(giving, scope, receive, send)
        except PdbusError as error:
            await _fail(exchange, giving, send, error)
        except ClientGone as gone:
            exchange.abandoned = str(gone)
            if exchange.abandoned == SLOW_CLIENT and ABORT in scope:
                # What is still buffered would wait for a reader that does not come.
                scope[ABORT]()
        except asyncio.CancelledError:
            # The process ends: the client is told, if it reads.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await _fail(exchange, giving, send, PdbusError(ErrorCode.DRAINING))
            raise
        finally:
            seat.running.remove(tally)
            tally.report(exchange, f"{self._api.prefix}{exchange.rid}")

    async def _ask(self, exchange: Exchange, tally: Tally, scope: Scope, receive: Receive) -> Asked:
        seat = self._seat
        readiness = seat.fleet.readiness()
        if not readiness.ok:
            raise PdbusError(readiness.code, readiness.reason)
        tally.stage = Stage.BODY
        body = await read_body(
            scope,
            receive,
            limit=seat.rules.max_body_bytes,
            timeout_s=seat.rules.body_timeout_s,
        )
        request = read_known(
            self._api.read, body, unknown=seat.rules.unknown_fields, route=exchange.route
        )
        tally.stage = Stage.PROMPT
        asker = Asker(
            rid=exchange.rid,
            tenant=exchange.visitor.tenant,
            mode=mode_of(header(scope, b"x-pdbus-mode")),
            key=key_of(header(scope, b"idempotency-key")),
            texts=seat.texts,
            clock=seat.clock,
            rules=seat.rules.call,
        )
        asking = self._api.ask(request, asker)
        # A long prompt takes seconds to encode: its client may leave meanwhile.
        long = len(body) > INLINE_CHARS
        asked = await (while_present(asking, receive, exchange) if long else asking)
        each = asked.choices_a_prompt
        calls = admitted(exchange.visitor, asked.calls, choices_a_prompt=each)
        tally.ask(calls, prompts=calls[::each], streaming=asked.stream)
        return asked if calls == asked.calls else msgspec.structs.replace(asked, calls=calls)

    def _giving(self, asked: Asked, exchange: Exchange, tally: Tally) -> Giving:
        seat = self._seat
        return Giving(
            asked=asked,
            calls=seat.calls,
            exchange=exchange,
            tally=tally,
            clock=seat.clock,
            at_once=seat.rules.call.choices_at_once,
            expose_placement=seat.rules.expose_placement,
        )

    async def _answer(self, giving: Giving, scope: Scope, receive: Receive, send: Send) -> None:
        exchange, rules = giving.exchange, self._seat.rules
        if not giving.asked.stream:
            await while_present(giving.whole(send), receive, exchange)
            return
        events = giving.event_stream(scope, send)
        pace = events.pace(ping_s=rules.ping_s, slow_s=rules.slow_client_s)
        await while_present(giving.stream(events), receive, exchange, pace)


async def _fail(exchange: Exchange, giving: Giving | None, send: Send, error: PdbusError) -> None:
    """Tell the client of a failure: an HTTP error, or an event once the stream has begun."""
    if exchange.complete:
        return
    if exchange.status is None:
        await send_error(exchange, send, error)
        return
    exchange.failure = error
    exchange.complete = True
    last = giving.last_words(error) if giving is not None else error_frame(error)
    await send({"type": "http.response.body", "body": last})
