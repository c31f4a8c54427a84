"""Lifecycle events: put into JetStream off the caller's path, read back by request."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import msgspec
from nats.aio.subscription import Subscription

from libs.bus.api import BusDown, BusError, NoResponders, TooLarge
from libs.bus.connect import Link
from libs.bus.frames import Delivery
from libs.bus.jetstream.streams import Ack, StreamSpec, ensure_stream, read_stream
from libs.clock import Clock
from libs.telemetry import count, get_logger, names
from proto.base import encode
from proto.events import Event
from proto.headers import MESSAGE_ID
from proto.ids import RequestId
from proto.subjects import ALL_EVENTS, STREAM_EVENTS, event, events_of

__all__ = ["Emitter", "event_stream", "read_events"]

_ROUND = 64
"""Events that are on their way at once."""

_GATHER_S = 0.02
"""A round waits so long for company: what a request does in one moment leaves together, and after
it rather than in its way."""
_ROUND_TIMEOUT_S = 2.0
_ENSURE_TIMEOUT_S = 5.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_STATUS = "Status"
_UNAVAILABLE = 503

_decode_ack = msgspec.json.Decoder(Ack).decode
_decode_event = msgspec.msgpack.Decoder(Event).decode


def event_stream(max_age_s: float, max_bytes: int) -> StreamSpec:
    """Return the declared event stream: the oldest events make room for new ones."""
    return StreamSpec(
        name=STREAM_EVENTS,
        subjects=(ALL_EVENTS,),
        description="pdbus lifecycle events",
        max_age_s=max_age_s,
        max_bytes=max_bytes,
    )


class _Waiting(msgspec.Struct, frozen=True):
    subject: str
    data: bytes
    key: str


class Emitter:
    """Stores events in order, each once, across outages; never makes its caller wait.

    Args:
        link: the connection.
        stream: where to.
        clock: for waiting.
        capacity: most events that wait; more are dropped and counted.
    """

    def __init__(self, link: Link, stream: StreamSpec, clock: Clock, *, capacity: int) -> None:
        self._link = link
        self._stream = stream
        self._clock = clock
        self._capacity = capacity
        self._waiting: deque[_Waiting] = deque()
        self._work = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closing = False
        self._overflowing = False
        self._ensured = False
        self._acks: Subscription | None = None
        self._ack_prefix = ""
        self._round = 0
        self._open: dict[str, _Waiting] = {}
        self._failed: list[_Waiting] = []
        self._answered = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def emit(self, fact: Event) -> None:
        """Hand over an event; it is encoded now and sent later."""
        if len(self._waiting) >= self._capacity:
            count(names.BUS_EVENT_OVERFLOW)
            if not self._overflowing:
                self._overflowing = True
                get_logger().error("events dropped: buffer full", capacity=self._capacity)
            return
        self._overflowing = False
        subject = event(fact.kind, fact.rid)
        self._waiting.append(_Waiting(subject, encode(fact), fact.dedup_key))
        self._empty.clear()
        self._work.set()

    async def run(self) -> None:
        """Store events until `close`; the owner of this task is the owner of the bus."""
        wait_s = _FIRST_WAIT_S
        while not self._closing:
            await self._work.wait()
            if not self._waiting:
                self._work.clear()
                self._empty.set()
                continue
            await self._clock.sleep(_GATHER_S)
            if await self._store_round():
                wait_s = _FIRST_WAIT_S
                continue
            await self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all events are stored; return whether that came true."""
        self._work.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Let `run` end; what still waits is lost, and said to be."""
        if self._waiting and not self._closing:
            get_logger().error("events lost: bus closed", waiting=len(self._waiting))
        self._closing = True
        self._work.set()

    async def _store_round(self) -> bool:
        """Send some events together; return whether all of them were settled."""
        try:
            await self._prepare()
        except BusError as error:
            get_logger().debug("events wait", waiting=len(self._waiting), error=str(error))
            return False
        batch = list(islice(self._waiting, _ROUND))
        self._round += 1
        self._failed = []
        try:
            self._open = {f"{self._ack_prefix}{self._round}-{i}": e for i, e in enumerate(batch)}
            for inbox, waiting in list(self._open.items()):
                await self._send(inbox, waiting)
            async with asyncio.timeout(_ROUND_TIMEOUT_S):
                while self._open:
                    self._answered.clear()
                    await self._answered.wait()
        except (BusError, TimeoutError) as error:
            get_logger().debug("events sent again", open=len(self._open), error=str(error))
        again = [*self._failed, *self._open.values()]
        self._open = {}
        for _ in batch:
            self._waiting.popleft()
        self._waiting.extendleft(reversed(again))
        return not again

    async def _prepare(self) -> None:
        if not self._link.connected:
            raise BusDown("there is no connection to NATS")
        if not self._ensured:
            await ensure_stream(self._link, self._stream, self._clock, timeout_s=_ENSURE_TIMEOUT_S)
            self._ensured = True
        if self._acks is None:
            self._ack_prefix = f"{self._link.client.new_inbox()}."
            self._acks = await self._link.listen(f"{self._ack_prefix}*", self._acknowledge)

    async def _send(self, inbox: str, waiting: _Waiting) -> None:
        try:
            await self._link.publish(
                waiting.subject, waiting.data, {MESSAGE_ID: waiting.key}, reply=inbox
            )
        except TooLarge:
            del self._open[inbox]
            count(names.BUS_EVENTS_PUBLISHED, outcome="too_large")

    def _acknowledge(self, msg: Delivery) -> None:
        waiting = self._open.pop(msg.subject, None)
        if waiting is None:
            return
        self._answered.set()
        if msg.headers.get(_STATUS) is not None:
            # Nobody holds the stream now.
            self._ensured = False
            self._failed.append(waiting)
            return
        ack = _decode_ack(msg.data)
        if ack.error is None:
            count(names.BUS_EVENTS_PUBLISHED, outcome="duplicate" if ack.duplicate else "stored")
        elif ack.error.code == _UNAVAILABLE:
            self._failed.append(waiting)
        else:
            count(names.BUS_EVENTS_PUBLISHED, outcome="refused")
            get_logger().error("event refused", error=ack.error.description)


async def read_events(link: Link, rid: RequestId, *, timeout_s: float) -> list[Event]:
    """Return all events of one request, in the order in which they were stored.

    Events that this version cannot decode are counted and left out.

    Raises:
        BusDown: there is no event stream now. RequestTimeout.
    """
    found: list[Event] = []
    try:
        async for msg in read_stream(link, STREAM_EVENTS, events_of(rid), timeout_s=timeout_s):
            try:
                found.append(_decode_event(msg.data))
            except (msgspec.DecodeError, UnicodeDecodeError):
                count(names.BUS_DECODE_ERRORS, template=STREAM_EVENTS)
    except NoResponders as error:
        raise BusDown(f"stream {STREAM_EVENTS} does not answer") from error
    return found
