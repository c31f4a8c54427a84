"""The bus port of one process on the simulated network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from libs.bus.api import BusDown, Endpoint, NoResponders, RequestTimeout, Subscription
from proto.base import Message, ProtocolError, decode, encode
from proto.control import Abort, Cancel
from proto.errors import ErrorCode, ErrorReply, PdbusError
from proto.events import Event
from proto.subjects import event as event_subject
from tests.sim.kernel.loop import Domain, owned_context
from tests.sim.ports.network import Deliver, LinkState, ReplyPath, SimNetwork, Subscriber

__all__ = ["SimBus"]

ReplyT = TypeVar("ReplyT", bound=Message)

_EVENT_BUFFER = 4096
_BARRIER_S = 2.0
"""How long a subscription waits for the server's word."""


class SimBus:
    """What one incarnation of one process holds of the network.

    Args:
        network: the wire.
        name: unique among the living.
        domain: the process, for its callbacks to belong to.
    """

    def __init__(self, network: SimNetwork, name: str, domain: Domain) -> None:
        self._network = network
        self._loop = network.loop
        self._domain = domain
        self._context = owned_context(domain)
        self._events: deque[Event] = deque()
        self._inbox: deque[Callable[[], None]] = deque()
        self._flushing = False
        self.subscriptions = 0
        self.dropped_events = 0
        self.link = network.join(name, domain)

    @property
    def connected(self) -> bool:
        """Whether this process believes that it can reach the server."""
        return self.link.state is not LinkState.DOWN

    @property
    def down_s(self) -> float:
        """Seconds since the connection was lost; 0 while connected."""
        return 0.0 if self.connected else self._loop.time() - self.link.lost_at

    async def publish(self, subject: str, message: Message) -> None:
        """Send at most once."""
        self._check_up()
        self._network.hooks.said(self.link, subject, message)
        self._network.send(self.link, subject, encode(message))
        await self._maybe_yield()

    def post(self, subject: str, message: Message) -> bool:
        """Send at most once, unless it had to wait."""
        self._check_up()
        if self._waits():
            return False
        self._network.hooks.said(self.link, subject, message)
        self._network.send(self.link, subject, encode(message))
        return True

    async def request(
        self, subject: str, message: Message, reply: type[ReplyT], *, timeout_s: float
    ) -> ReplyT:
        """Ask and wait for the answer."""
        self._check_up()
        self._network.hooks.said(self.link, subject, message)
        if timeout_s <= 0:
            raise RequestTimeout(subject)
        answer: asyncio.Future[tuple[bytes, bool]] = self._loop.create_future()

        def resolve(data: bytes, good: bool) -> None:
            if not answer.done():
                answer.set_result((data, good))

        path = ReplyPath(self.link, resolve)
        if not self._network.send(self.link, subject, encode(message), path):
            await asyncio.sleep(0.0001)
            raise NoResponders(subject)
        try:
            async with asyncio.timeout(timeout_s):
                data, good = await answer
        except TimeoutError as error:
            raise RequestTimeout(subject) from error
        return _understand(data, reply, good=good)

    async def subscribe(
        self, subject: str, kind: Any, handler: Callable[[str, Any], None]
    ) -> Subscription:
        """Call a handler for each message."""

        def deliver(where: str, data: bytes, _path: ReplyPath | None) -> None:
            self.accept(partial(receive, where, data))

        def receive(where: str, data: bytes) -> None:
            try:
                message = self._network.decoded(data, kind)
            except ProtocolError as error:
                self._network.trace.note("undecodable", f"{self.link.name} {where} {error}")
                return
            self._note_ending(message)
            try:
                handler(where, message)
            except Exception as error:  # noqa: BLE001 - as the real dispatcher: told and counted
                self._network.trace.violate("handler", f"{self.link.name} {where} {error!r}")

        return await self._listen(subject, None, deliver, None)

    async def serve(self, endpoint: Endpoint) -> Subscription:
        """Answer requests."""
        service = _Service(self, endpoint)
        return await self._listen(endpoint.subject, endpoint.queue, service.deliver, service)

    def emit(self, event: Event) -> None:
        """Buffer an event, and send it when there is a connection."""
        self._network.hooks.told(self.link, event)
        if len(self._events) >= _EVENT_BUFFER:
            self.dropped_events += 1
            return
        self._events.append(event)
        self._flush_soon(self._network.latency())

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all events have been stored; return whether they were in time."""
        until = self._loop.time() + timeout_s
        while self._events and self._loop.time() < until:
            await asyncio.sleep(0.01)
        return not self._events

    def accept(self, work: Callable[[], None]) -> None:
        """Let the process take in a message, after all that came before it."""
        if not self._inbox and not self._domain.paused:
            self._context.run(work)
            return
        self._inbox.append(work)
        self._loop.call_soon(self._take_next, context=self._context)

    @property
    def network(self) -> SimNetwork:
        """The wire."""
        return self._network

    def _note_ending(self, message: Message) -> None:
        if isinstance(message, Abort | Cancel):
            self._network.hooks.ending(self.link, message)

    def _take_next(self) -> None:
        self._inbox.popleft()()

    def _flush_soon(self, seconds: float) -> None:
        if not self._flushing:
            self._flushing = True
            self._network.later(seconds, self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._domain.alive:
            return
        if self.link.state is not LinkState.UP or self._domain.paused:
            self._flush_soon(0.1)
            return
        while self._events:
            event = self._events.popleft()
            self._network.record_event(self.link, event)
            self._network.send(self.link, event_subject(event.kind, event.rid), encode(event))

    def _check_up(self) -> None:
        if not self.connected:
            raise BusDown(self.link.name)

    async def _listen(
        self, subject: str, queue: str | None, deliver: Deliver, service: _Service | None
    ) -> _SimSubscription:
        """Subscribe, and wait for the server's word; without it there is no subscription."""
        self._check_up()
        subscriber = self._network.subscribe(self.link, subject, queue, deliver)
        subscription = _SimSubscription(self, subscriber, service)
        self.subscriptions += 1
        confirmed = False
        try:
            await self._barrier()
            confirmed = True
        finally:
            if not confirmed:
                subscription.end()
        return subscription

    async def _barrier(self) -> None:
        await asyncio.sleep(self._network.latency())
        waited = 0.0
        while self.link.state is LinkState.HALF and waited < _BARRIER_S:
            await asyncio.sleep(0.1)
            waited += 0.1
        if self.link.state is LinkState.HALF:
            raise RequestTimeout(self.link.name)
        self._check_up()

    async def _maybe_yield(self) -> None:
        if self._waits():
            await asyncio.sleep(0)

    def _waits(self) -> bool:
        # The real client yields only when its buffer is full: now and then, for the order.
        return self._network.rng.random() < 0.05


def _understand(data: bytes, reply: type[ReplyT], *, good: bool) -> ReplyT:
    try:
        if good:
            return decode(data, reply)
        refusal = decode(data, ErrorReply)
    except ProtocolError as error:
        raise PdbusError(ErrorCode.INTERNAL, "the reply is not what was asked for") from error
    raise PdbusError(
        refusal.code,
        refusal.detail,
        param=refusal.param,
        retry_after_s=refusal.retry_after_s,
    )


class _Service:
    """One endpoint: runs its handlers, at most so many at once."""

    def __init__(self, bus: SimBus, endpoint: Endpoint) -> None:
        self._bus = bus
        self._endpoint = endpoint
        self.running: set[asyncio.Task[None]] = set()

    def deliver(self, subject: str, data: bytes, path: ReplyPath | None) -> None:
        """Begin one request."""
        self._bus.accept(partial(self._begin, subject, data, path))

    def _begin(self, subject: str, data: bytes, path: ReplyPath | None) -> None:
        loop = self._bus.network.loop
        if len(self.running) >= self._endpoint.concurrency:
            self._refuse(subject, path, ErrorReply(code=ErrorCode.SATURATED))
            return
        if not iscoroutinefunction(self._endpoint.handler):
            self._answer_at_once(subject, data, path)
            return
        task = loop.create_task(
            self._answer(subject, data, path), name=f"serve {self._endpoint.name}"
        )
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    def _answer_at_once(self, subject: str, data: bytes, path: ReplyPath | None) -> None:
        handler = cast("Callable[[Message], Message]", self._endpoint.handler)
        try:
            answer = handler(self._understand(data))
        except Exception as error:  # noqa: BLE001 - as the real dispatcher: typed, told, counted
            self._refuse(subject, path, self._refusal(error))
        else:
            self._reply(subject, path, encode(answer), good=True)

    async def _answer(self, subject: str, data: bytes, path: ReplyPath | None) -> None:
        handler = cast("Callable[[Message], Awaitable[Message]]", self._endpoint.handler)
        try:
            answer = await handler(self._understand(data))
        except Exception as error:  # noqa: BLE001 - as the real dispatcher: typed, told, counted
            self._refuse(subject, path, self._refusal(error))
        else:
            self._reply(subject, path, encode(answer), good=True)

    def _understand(self, data: bytes) -> Message:
        try:
            request = decode(data, self._endpoint.request)
        except ProtocolError as error:
            raise PdbusError(ErrorCode.INVALID_REQUEST, str(error)) from error
        self._bus._note_ending(request)
        return request

    def _refusal(self, error: Exception) -> ErrorReply:
        if isinstance(error, PdbusError):
            return ErrorReply(
                code=error.code,
                detail=error.detail,
                param=error.param,
                retry_after_s=error.retry_after_s,
            )
        self._bus.network.trace.violate(
            "handler", f"{self._bus.link.name} {self._endpoint.name} {error!r}"
        )
        return ErrorReply(code=ErrorCode.INTERNAL)

    def _refuse(self, subject: str, path: ReplyPath | None, refusal: ErrorReply) -> None:
        self._reply(subject, path, encode(refusal), good=False)

    def _reply(self, subject: str, path: ReplyPath | None, data: bytes, *, good: bool) -> None:
        if path is not None:
            self._bus.network.answer(self._bus.link, path, subject, data, good=good)


class _SimSubscription:
    """A running subscription or endpoint."""

    def __init__(
        self, bus: SimBus, subscriber: Subscriber, service: _Service | None = None
    ) -> None:
        self._bus = bus
        self._subscriber = subscriber
        self._service = service

    def end(self) -> None:
        """Stop receiving."""
        if self._subscriber.active:
            self._bus.network.unsubscribe(self._subscriber)
            self._bus.subscriptions -= 1

    async def close(self) -> None:
        """Stop receiving, and wait for the handlers that run."""
        self.end()
        if self._service is not None:
            others = self._service.running - {asyncio.current_task()}
            if others:
                await asyncio.wait(others)
