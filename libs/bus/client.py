"""The bus on NATS, and the one function that opens it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from nats.aio.subscription import Subscription

from libs.bus.api import BusError, Endpoint
from libs.bus.connect import BusNotStarted, Link
from libs.bus.endpoints import ServedEndpoint, TaskOwner, about
from libs.bus.frames import Delivery, head_of
from libs.bus.jetstream import (
    BucketSpec,
    Emitter,
    NatsStore,
    event_stream,
    events_in,
    read_events,
)
from libs.bus.patience import until_up
from libs.bus.service import ServiceApi, ServiceIdentity
from libs.bus.settings import BusSettings
from libs.clock import Clock
from libs.telemetry import (
    SpanKind,
    attributes,
    count,
    gauge,
    get_logger,
    names,
    observe,
    observer,
    recording,
    span,
    traceparent,
)
from proto.base import Message, ProtocolError, decode, encode
from proto.errors import ErrorCode, ErrorReply, PdbusError
from proto.events import Event
from proto.headers import SERVICE_ERROR_CODE, TRACEPARENT, TRACESTATE
from proto.ids import RequestId
from proto.subjects import template

__all__ = ["NatsBus", "open_bus"]

ReplyT = TypeVar("ReplyT", bound=Message)
RecordT = TypeVar("RecordT", bound=Message)

_STEP_S = 5.0
"""Longest single step of closing, where the caller sets no limit."""


class NatsBus:
    """The `Bus` port over one NATS connection; `open_bus` makes it.

    Args:
        link: the open connection.
        clock: time and chance.
        tasks: owner of the handlers and of the emitter; it must outlive `drain`.
        identity: for the service API; None for programs that offer no service.
    """

    def __init__(
        self, link: Link, clock: Clock, tasks: TaskOwner, identity: ServiceIdentity | None
    ) -> None:
        self.link = link
        self._clock = clock
        self._tasks = tasks
        self._endpoints: list[ServedEndpoint] = []
        self._ways: dict[str, _Way] = {}
        self._asking = 0
        self._quiet: asyncio.Event | None = None
        """Set when the last of our own requests has ended; made by who waits for that."""
        settings = link.settings
        stream = event_stream(settings.event_max_age_s, settings.event_max_bytes)
        self._emitter = Emitter(link, stream, clock, capacity=settings.event_buffer)
        self._service = (
            None if identity is None else ServiceApi(identity, link, self._served, clock)
        )
        self._remove_gauges: list[Callable[[], None]] = []

    @property
    def connected(self) -> bool:
        """Whether the server can be reached now."""
        return self.link.connected

    @property
    def down_s(self) -> float:
        """Seconds since the connection was lost; 0 while connected."""
        return self.link.down_s

    @property
    def permission_errors(self) -> tuple[str, ...]:
        """What the server denied; a service that has any is not ready."""
        return tuple(self.link.permission_errors)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the server's configuration."""
        return self.link.warnings

    async def start(self) -> None:
        """Answer the service API and begin to store events."""
        if self._service is not None:
            await self._service.start()
        self._tasks.spawn(self._emitter.run(), name="store events")
        self._remove_gauges = [
            gauge(names.BUS_CONNECTED, lambda: float(self.link.connected)),
            gauge(names.BUS_PENDING_BYTES, lambda: float(self.link.client.pending_data_size)),
        ]

    async def publish(self, subject: str, message: Message) -> None:
        """Send to whoever listens, at most once, without trace headers.

        Raises:
            BusDown: there is no connection (nothing is buffered).
            TooLarge: the message does not fit.
        """
        await self.link.publish(subject, encode(message))

    def post(self, subject: str, message: Message) -> bool:
        """Publish at once, or raise as `publish` does; return False where that had to wait."""
        if self.link.congested:
            return False
        self.link.post(subject, encode(message))
        self.link.client.leave()
        return True

    async def request(
        self, subject: str, message: Message, reply: type[ReplyT], *, timeout_s: float
    ) -> ReplyT:
        """Ask and wait for the answer, with the caller's trace context.

        Raises:
            PdbusError: the other side refused, with its code.
            NoResponders, RequestTimeout, BusDown, TooLarge.
        """
        name = template(subject)
        way = self._ways.get(name) or self._way(name)
        facts = way.facts(subject) if recording() else None
        started = time.perf_counter()
        self._asking += 1
        try:
            with span(way.span, facts, kind=SpanKind.PRODUCER) as current:
                data = encode(message)
                if facts is not None:
                    current.set_attributes(about(message, data))
                msg = await self.link.ask(subject, data, _trace_head(), timeout_s)
                answer = _understand(msg, reply)
        except BaseException as error:
            way.failed(error, time.perf_counter() - started)
            raise
        else:
            way.took(time.perf_counter() - started)
            return answer
        finally:
            self._asking -= 1
            if self._quiet is not None and not self._asking:
                self._quiet.set()

    async def subscribe(
        self, subject: str, kind: Any, handler: Callable[[str, Any], None]
    ) -> _Subscribed:
        """Call `handler(subject, message)` for each message; it must return at once.

        `kind` is a message class or a union of them; undecodable messages are counted and
        dropped. Events come one by one, however they travel. When this returns, messages that
        anyone publishes from now on will arrive.

        Raises:
            Forbidden, BusDown, RequestTimeout.
        """
        several = kind is Event
        understand = events_in if several else msgspec.msgpack.Decoder(kind).decode

        def receive(msg: Delivery) -> None:
            try:
                found = understand(msg.data)
            except (msgspec.DecodeError, UnicodeDecodeError):
                count(names.BUS_DECODE_ERRORS, template=template(msg.subject))
                get_logger().error("message not understood", template=template(msg.subject))
                return
            try:
                for message in found if several else (found,):
                    handler(msg.subject, message)
            except Exception:  # noqa: BLE001 - the dispatcher's net
                # One message must not end the subscription.
                count(names.BUS_HANDLER_ERRORS, template=template(msg.subject))
                get_logger().exception("handler failed", template=template(msg.subject))

        return _Subscribed(self.link, await self.link.listen(subject, receive))

    async def serve(self, endpoint: Endpoint) -> ServedEndpoint:
        """Answer requests. When this returns, requests sent from now on by anyone will arrive.

        Raises:
            Forbidden, BusDown, RequestTimeout.
        """
        served = ServedEndpoint(endpoint, self.link, self._tasks, self._forget)
        await served.start()
        self._endpoints.append(served)
        return served

    def emit(self, event: Event) -> None:
        """Hand an event to the event stream, off the caller's path; lost only with the process.

        While the bus is down, events wait in a bounded buffer; an overflow is counted.
        """
        self._emitter.emit(event)

    async def flush_events(self, timeout_s: float) -> bool:
        """Wait until all events emitted so far are stored; return whether that came true."""
        return await self._emitter.flush(timeout_s)

    async def read_events(self, rid: RequestId, *, timeout_s: float = 5.0) -> list[Event]:
        """Return the stored events of one request, in the order in which they were stored.

        Raises:
            BusDown, RequestTimeout.
        """
        return await read_events(self.link, rid, timeout_s=timeout_s)

    def store(
        self, bucket: BucketSpec, kind: type[RecordT], *, timeout_s: float = 1.0
    ) -> NatsStore[RecordT]:
        """Return a ledger of records; its bucket is made when it is first needed."""
        return NatsStore(self.link, bucket, kind, self._clock, timeout_s=timeout_s)

    def describe(self, **facts: str) -> None:
        """Set metadata in the service API that became known, or changed, after the start."""
        if self._service is not None:
            self._service.describe(**facts)

    async def drain(self, timeout_s: float) -> bool:
        """Stop in order: no new requests, own handlers end, events are stored, then close.

        Works in every state of the connection. Returns whether everything ended in time.
        """
        deadline = self._clock.monotonic() + timeout_s

        def left() -> float:
            return max(0.0, deadline - self._clock.monotonic())

        endpoints = list(self._endpoints)
        for served in endpoints:
            await served.stop(min(left(), _STEP_S))
        idle = [await served.idle(left()) for served in endpoints]
        await self._answered(left())
        stored = await self._emitter.flush(min(left(), _STEP_S))
        complete = all(idle) and stored and not self._asking
        await self.close(min(left(), _STEP_S))
        return complete

    async def close(self, timeout_s: float = 1.0) -> None:
        """Close the connection now; what was sent before still leaves, if there is a connection."""
        self._emitter.close()
        try:
            if self.link.connected and timeout_s > 0:
                await self.link.barrier(timeout_s)
        except BusError as error:
            get_logger().warning("bus closed before all was sent", error=str(error))
        finally:
            await self.link.close()
            for remove in self._remove_gauges:
                remove()

    async def _answered(self, timeout_s: float) -> None:
        """Wait until our own requests have their replies: closing would cut them off."""
        if not self._asking:
            return
        self._quiet = self._quiet or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._quiet.wait()
        except TimeoutError:
            get_logger().warning("bus closed before all requests ended", open=self._asking)

    def _way(self, name: str) -> _Way:
        found = self._ways[name] = _Way(name)
        return found

    def _forget(self, served: ServedEndpoint) -> None:
        if served in self._endpoints:
            self._endpoints.remove(served)

    def _served(self) -> list[ServedEndpoint]:
        return self._endpoints


class _Way:
    """What there is to tell of the requests to one template."""

    __slots__ = ("_name", "span", "took")

    def __init__(self, name: str) -> None:
        self._name = name
        self.span = names.span_send(name)
        labels = {attributes.MESSAGING_TEMPLATE: name}
        self.took = observer(names.MESSAGING_OPERATION_DURATION, **labels)

    def facts(self, subject: str) -> dict[str, str]:
        """Return what the span of a request says."""
        return {
            attributes.MESSAGING_SYSTEM: "nats",
            attributes.MESSAGING_OPERATION_TYPE: "send",
            attributes.MESSAGING_OPERATION_NAME: "request",
            attributes.MESSAGING_DESTINATION: subject,
            attributes.MESSAGING_TEMPLATE: self._name,
        }

    def failed(self, error: BaseException, spent_s: float) -> None:
        """Count the time of a request that got no answer, or a refusal."""
        labels = {attributes.MESSAGING_TEMPLATE: self._name}
        if isinstance(error, PdbusError):
            labels[attributes.ERROR_TYPE] = str(error.code)
        elif isinstance(error, BusError):
            labels[attributes.ERROR_TYPE] = type(error).__name__
        observe(names.MESSAGING_OPERATION_DURATION, spent_s, **labels)


class _Subscribed:
    """A running subscription."""

    def __init__(self, link: Link, subscription: Subscription) -> None:
        self._link = link
        self._subscription = subscription

    async def close(self) -> None:
        """Stop receiving; returns when no handler of it runs any more."""
        await self._link.client.stop_subscription(
            self._subscription, self._link.settings.barrier_timeout_s
        )


async def open_bus(
    settings: BusSettings,
    clock: Clock,
    tasks: TaskOwner,
    identity: ServiceIdentity | None = None,
) -> NatsBus:
    """Connect, check the server, answer the service API, and begin to store events.

    Streams and buckets are made when they are first needed. End it with `drain` or `close`, before
    `tasks` ends.

    Raises:
        BusNotStarted: no server was reached in time, or it cannot be used.
        Forbidden: it denies us our inbox or the service API.
    """
    me = identity
    name = settings.name if me is None else f"{me.service}/{me.instance}/{me.version}"
    inbox = f"_INBOX.{settings.name}" if me is None else f"_INBOX.{me.service}.{me.instance}"
    link = Link(settings, name=name, inbox=inbox, clock=clock)
    await link.open()
    bus = NatsBus(link, clock, tasks, identity)
    usable = False
    try:
        async with asyncio.timeout(settings.startup_deadline_s):
            await until_up(clock, link.check_inbox)
            await until_up(clock, bus.start)
        usable = True
    except TimeoutError as error:
        raise BusNotStarted("the NATS server was lost while we started") from error
    finally:
        if not usable:
            await link.close()
    return bus


def _trace_head() -> bytes | None:
    parent, state = traceparent()
    if parent is None:
        return None
    if state:
        return head_of({TRACEPARENT: parent, TRACESTATE: state})
    return f"NATS/1.0\r\n{TRACEPARENT}: {parent}\r\n\r\n".encode()


def _understand(msg: Delivery, reply: type[ReplyT]) -> ReplyT:
    try:
        if not msg.head or SERVICE_ERROR_CODE not in msg.headers:
            return decode(msg.data, reply)
        refusal = decode(msg.data, ErrorReply)
    except ProtocolError as error:
        count(names.BUS_DECODE_ERRORS, template="reply")
        raise PdbusError(ErrorCode.INTERNAL, "the reply is not what was asked for") from error
    raise PdbusError(
        refusal.code,
        refusal.detail,
        param=refusal.param,
        retry_after_s=refusal.retry_after_s,
    )
