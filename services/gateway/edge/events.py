"""Server-sent events to one client: a late head, one write a batch, a pulse while idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.types import Send

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
from services.gateway.edge.connection import Body
from services.gateway.edge.exchange import Exchange
from services.gateway.edge.presence import Pace
from services.gateway.edge.reply import Header

__all__ = ["PING", "EventStream"]

PING = b": ping\n\n"
"""A comment: clients skip it, proxies see life."""

_HEAD: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_TICKS = 3
"""How many times within its shortest limit the pulse looks."""


class EventStream:
    """Writes events.

    The head goes out with the first write, so that a failure before it can still be a plain HTTP
    error.

    Args:
        body: takes writes that need not wait, where the server offers that.
        opening: gives the first event, written together with whatever comes first; None while it
            is not known yet.
        headers: asked for when the head is sent.
    """

    def __init__(
        self,
        exchange: Exchange,
        send: Send,
        *,
        clock: Clock,
        body: Body | None = None,
        opening: Callable[[], bytes | None],
        headers: Callable[[], Sequence[Header]],
    ) -> None:
        self._exchange = exchange
        self._send = send
        self._clock = clock
        self._body = body
        self._opening: Callable[[], bytes | None] | None = opening
        self._headers = headers
        self.last_s = clock.monotonic()
        """When something was written last; who writes to `direct` says so here."""
        self.direct: Body | None = None
        """Takes whole events at once, while it is free; None unless all before is written."""
        self._blocked_since_s: float | None = None

    @property
    def started(self) -> bool:
        """Whether the head has been sent."""
        return self._exchange.status is not None

    async def write(self, data: bytes) -> None:
        """Write some whole events; waits while the client's connection is full."""
        await self._put(data, more=True)

    @property
    def fresh(self) -> bool:
        """Whether `begin_now` may be called: nothing has been sent, and the server offers that."""
        body = self._body
        return (
            body is not None and not self.started and self._blocked_since_s is None and body.fresh
        )

    def begin_now(self, data: bytes, now_s: float) -> None:
        """Write the head, the opening and some whole events at once; only while fresh."""
        first = self._opening() if self._opening is not None else None
        if self._body is None or first is None:
            raise PdbusError(ErrorCode.INTERNAL, "the stream cannot begin at once")
        self._body.begin(self._head(), first + data)
        self._exchange.status = 200
        self._opening = None
        self.direct = self._body
        self.last_s = now_s

    async def close(self, data: bytes = b"") -> None:
        """Write the last events and end the answer."""
        direct, self.direct = self.direct, None
        if direct is None or not data or not direct.free:
            await self._put(data, more=False)
            return
        self._exchange.complete = True
        direct.end(data)
        self.last_s = self._clock.monotonic()

    def pace(self, *, ping_s: float, slow_s: float) -> Pace:
        """Return what writes a comment whenever nothing was written for `ping_s`.

        It finds a client too slow when one write has been waiting for it for `slow_s`.
        """
        every_s = min(ping_s, slow_s) / _TICKS
        return Pace(every_s, partial(self._pulse, every_s, ping_s, slow_s))

    async def _pulse(self, every_s: float, ping_s: float, slow_s: float) -> None:
        while True:
            now_s = self._clock.monotonic()
            if self._blocked_since_s is not None:
                if now_s - self._blocked_since_s >= slow_s:
                    return
            elif now_s - self.last_s >= ping_s and not self._exchange.complete:
                await self.write(PING)
            await self._clock.sleep(every_s)

    async def _put(self, data: bytes, *, more: bool) -> None:
        self._blocked_since_s = self._clock.monotonic()
        self.direct = None
        try:
            first = self._opening() if self._opening is not None else None
            if first is not None:
                data = first + data
                self._opening = None
            if not self.started:
                await self._start()
            self._exchange.complete = not more
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            self.last_s = self._clock.monotonic()
            self._blocked_since_s = None
            if more and self._opening is None:
                self.direct = self._body

    async def _start(self) -> None:
        self._exchange.status = 200
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": self._head(),
            }
        )

    def _head(self) -> list[Header]:
        return [*_HEAD, *self._exchange.head(), *self._headers()]
