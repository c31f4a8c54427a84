"""Lifecycle events: put into JetStream off the caller's path, read back by request."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
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
from proto.events import FINISHED, Event, EventBundle, EventKind
from proto.headers import MESSAGE_ID
from proto.ids import RequestId
from proto.subjects import ALL_EVENTS, STREAM_EVENTS, event, events_of

__all__ = ["Emitter", "event_stream", "events_in", "read_events"]

_ROUND = 64
"""Messages that are on their way at once."""

_HOLD_S = 0.25
"""What a process has to say of one request is gathered for so long, unless it ends here before."""
_MOST_TOGETHER = 64
"""Events of one message."""
_URGENT = frozenset(
    {
        EventKind.REQUEST_DONE,
        EventKind.REQUEST_FAILED,
        EventKind.REQUEST_CANCELLED,
        EventKind.ATTEMPT_FAILED,
        EventKind.LEASE_ENDED,
        EventKind.LEASE_FREED,
        EventKind.ENGINE_READY,
        EventKind.ENGINE_LOST,
    }
)
"""Ends, proofs, and what others act on: with these leaves all that was gathered of the request.
The proof of a lease whose work was done to its end is none of them: it may wait for the other."""

_GATHER_S = 0.02
"""A round waits so long for company: what a request does in one moment leaves together, and after
it rather than in its way. No longer: the end of a request is lost with its process."""
_ROUND_TIMEOUT_S = 2.0
_ENSURE_TIMEOUT_S = 5.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_STATUS = "Status"
_UNAVAILABLE = 503

_decode_ack = msgspec.json.Decoder(Ack).decode
_decode = msgspec.msgpack.Decoder(Event | EventBundle).decode


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
    events: tuple[Event, ...]


@dataclass(slots=True)
class _Gathered:
    """What there is to say of one request so far."""

    due_s: float
    events: dict[str, Event] = field(default_factory=dict[str, Event])


def _is_urgent(fact: Event) -> bool:
    ordinary = fact.kind is EventKind.LEASE_FREED and fact.data.get("why") == FINISHED
    return fact.kind in _URGENT and not ordinary


def _message(events: tuple[Event, ...]) -> _Waiting:
    """Return events of one request as one message: the same events make the same one."""
    last = events[-1]
    subject = event(last.kind, last.rid)
    if len(events) == 1:
        return _Waiting(subject, encode(last), last.dedup_key, events)
    data = encode(EventBundle(events=events))
    key = f"{last.rid}:{blake2b(data, digest_size=12).hexdigest()}"
    return _Waiting(subject, data, key, events)


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
        self._gathered: dict[str, _Gathered] = {}
        """By request, the oldest first."""
        self._held = 0
        """Events that are gathered or wait."""
        self._waiting: deque[_Waiting] = deque()
        self._hurry = asyncio.Event()
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
        return self._held

    def emit(self, fact: Event) -> None:
        """Hand over an event; it is sent later, with others of its request."""
        if self._held >= self._capacity:
            count(names.BUS_EVENT_OVERFLOW)
            if not self._overflowing:
                self._overflowing = True
                get_logger().error("events dropped: buffer full", capacity=self._capacity)
            return
        self._overflowing = False
        # What belongs to no request has no company.
        key = fact.dedup_key
        whose = fact.rid or key
        gathered = self._gathered.get(whose)
        if gathered is None:
            gathered = self._gathered[whose] = _Gathered(self._clock.monotonic() + _HOLD_S)
        if key in gathered.events:
            count(names.BUS_EVENTS_PUBLISHED, outcome="duplicate")
            return
        gathered.events[key] = fact
        if not self._held:
            self._empty.clear()
            self._work.set()
        self._held += 1
        if _is_urgent(fact) or len(gathered.events) >= _MOST_TOGETHER:
            self._close(whose)

    def _close(self, whose: str) -> None:
        """What was gathered of a request leaves with the next round."""
        self._waiting.append(_message(tuple(self._gathered.pop(whose).events.values())))
        self._hurry.set()

    async def run(self) -> None:
        """Store events until `close`; the owner of this task is the owner of the bus."""
        wait_s = _FIRST_WAIT_S
        while not self._closing:
            await self._work.wait()
            if not self._held:
                self._work.clear()
                self._empty.set()
                continue
            if not self._waiting:
                await self._company()
            await self._clock.sleep(_GATHER_S)
            self._close_due()
            if not self._waiting or await self._store_round():
                wait_s = _FIRST_WAIT_S
                continue
            await self._clock.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def _company(self) -> None:
        """Wait until the oldest that is gathered is due, or something must leave at once."""
        self._hurry.clear()
        oldest = next(iter(self._gathered.values()), None)
        if oldest is None:
            return
        wait_s = max(0.0, oldest.due_s - self._clock.monotonic())
        timer = asyncio.get_running_loop().call_later(wait_s, self._hurry.set)
        try:
            await self._hurry.wait()
        finally:
            timer.cancel()

    def _close_due(self) -> None:
        now = self._clock.monotonic()
        for whose in [rid for rid, one in self._gathered.items() if one.due_s <= now]:
            self._close(whose)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all events are stored; return whether that came true."""
        for whose in list(self._gathered):
            self._close(whose)
        self._work.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Let `run` end; what still waits is lost, and said to be."""
        if self._held and not self._closing:
            get_logger().error("events lost: bus closed", waiting=self._held)
        self._closing = True
        self._work.set()
        self._hurry.set()

    async def _store_round(self) -> bool:
        """Send some events together; return whether all of them were settled."""
        try:
            await self._prepare()
        except BusError as error:
            get_logger().debug("events wait", waiting=self._held, error=str(error))
            return False
        batch = list(islice(self._waiting, _ROUND))
        self._round += 1
        self._failed = []
        try:
            self._open = {f"{self._ack_prefix}{self._round}-{i}": e for i, e in enumerate(batch)}
            for inbox, waiting in list(self._open.items()):
                await self._send(inbox, waiting)
            await self._settled()
        except BusError as error:
            get_logger().debug("events sent again", open=len(self._open), error=str(error))
        again = [*self._failed, *self._open.values()]
        self._open = {}
        for _ in batch:
            self._waiting.popleft()
        self._waiting.extendleft(reversed(again))
        self._held -= sum(len(each.events) for each in batch)
        self._held += sum(len(each.events) for each in again)
        return not again

    async def _settled(self) -> None:
        """Wait until all that is open was answered, or for the time of a round."""
        self._answered.clear()
        if not self._open:
            return
        # It is set once all are answered, or by this.
        timer = asyncio.get_running_loop().call_later(_ROUND_TIMEOUT_S, self._answered.set)
        try:
            await self._answered.wait()
        finally:
            timer.cancel()

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
            if len(waiting.events) > 1:
                # One of them is too large; the others go alone.
                self._failed += [_message((each,)) for each in waiting.events]
                return
            count(names.BUS_EVENTS_PUBLISHED, outcome="too_large")

    def _acknowledge(self, msg: Delivery) -> None:
        waiting = self._open.pop(msg.subject, None)
        if waiting is None:
            return
        if not self._open:
            # The round waits for the last answer, whatever the others are.
            self._answered.set()
        if msg.head and msg.headers.get(_STATUS) is not None:
            # Nobody holds the stream now.
            self._ensured = False
            self._failed.append(waiting)
            return
        ack = _decode_ack(msg.data)
        if ack.error is None:
            outcome = "duplicate" if ack.duplicate else "stored"
            count(names.BUS_EVENTS_PUBLISHED, len(waiting.events), outcome=outcome)
        elif ack.error.code == _UNAVAILABLE:
            self._failed.append(waiting)
        else:
            count(names.BUS_EVENTS_PUBLISHED, len(waiting.events), outcome="refused")
            get_logger().error("event refused", error=ack.error.description)


def events_in(data: bytes) -> tuple[Event, ...]:
    """Return the events of one message, which may be one or some.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it is no such message.
    """
    message = _decode(data)
    return message.events if isinstance(message, EventBundle) else (message,)


async def read_events(link: Link, rid: RequestId, *, timeout_s: float) -> list[Event]:
    """Return all events of one request, in the order in which they were stored, each once.

    Events that this version cannot decode are counted and left out.

    Raises:
        BusDown: there is no event stream now. RequestTimeout.
    """
    found: dict[str, Event] = {}
    try:
        async for msg in read_stream(link, STREAM_EVENTS, events_of(rid), timeout_s=timeout_s):
            try:
                for each in events_in(msg.data):
                    found.setdefault(each.dedup_key, each)
            except (msgspec.DecodeError, UnicodeDecodeError):
                count(names.BUS_DECODE_ERRORS, template=STREAM_EVENTS)
    except NoResponders as error:
        raise BusDown(f"stream {STREAM_EVENTS} does not answer") from error
    return list(found.values())
