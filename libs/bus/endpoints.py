"""Answering requests: concurrent handlers, a typed reply for every outcome, an orderly end.

A handler that waits for others runs as a task. One that never waits is a plain function: it is
called where its request is read, and its reply leaves in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, Protocol, cast

import msgspec
from nats.aio.subscription import Subscription

from libs.bus.api import BusDown, BusError, Endpoint, TooLarge
from libs.bus.connect import Link
from libs.bus.frames import Delivery
from libs.telemetry import (
    Span,
    SpanKind,
    attach,
    attributes,
    count,
    get_logger,
    names,
    observer,
    span,
)
from proto.base import Message, encode
from proto.errors import ErrorCode, ErrorReply, PdbusError, spec_of
from proto.headers import SERVICE_ERROR, SERVICE_ERROR_CODE, TRACEPARENT, TRACESTATE
from proto.subjects import template

__all__ = ["ServedEndpoint", "TaskOwner", "about"]


class TaskOwner(Protocol):
    """Whoever owns the tasks of a process; `libs.lifecycle.Tasks` is one."""

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Run `work` as a task."""
        ...


class ServedEndpoint:
    """One running endpoint and its counters.

    Args:
        endpoint: what to serve.
        link: the connection.
        tasks: owner of the handlers.
        closed: called when the endpoint has closed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        link: Link,
        tasks: TaskOwner,
        closed: Callable[[ServedEndpoint], None],
    ) -> None:
        self.endpoint = endpoint
        self.num_requests = 0
        self.num_errors = 0
        self.processing_ns = 0
        self.last_error = ""
        self._link = link
        self._tasks = tasks
        self._closed = closed
        handler = endpoint.handler
        self._waits = iscoroutinefunction(handler)
        self._handle_waiting = cast("Callable[[Message], Awaitable[Message]]", handler)
        self._handle_at_once = cast("Callable[[Message], Message]", handler)
        self._decode = msgspec.msgpack.Decoder(endpoint.request).decode
        self._running: set[asyncio.Task[Any]] = set()
        self._subscription: Subscription | None = None
        self._template = template(endpoint.subject)
        self._span = names.span_process(self._template)
        self._task_name = f"serve {endpoint.name}"
        self._observe = observer(
            names.MESSAGING_PROCESS_DURATION, **{attributes.MESSAGING_TEMPLATE: self._template}
        )
        self._attributes: dict[str, str] = {
            attributes.MESSAGING_SYSTEM: "nats",
            attributes.MESSAGING_OPERATION_TYPE: "process",
            attributes.MESSAGING_OPERATION_NAME: "process",
            attributes.MESSAGING_DESTINATION: endpoint.subject,
            attributes.MESSAGING_TEMPLATE: self._template,
        }
        if endpoint.queue:
            self._attributes[attributes.MESSAGING_GROUP] = endpoint.queue

    @property
    def inflight(self) -> int:
        """How many handlers run now."""
        return len(self._running)

    async def start(self) -> None:
        """Begin to answer; requests that anyone sends from now on arrive."""
        self._subscription = await self._link.listen(
            self.endpoint.subject, self._receive, queue=self.endpoint.queue
        )

    async def stop(self, timeout_s: float) -> None:
        """Stop receiving; requests that have arrived still get their handler."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._link.client.stop_subscription(subscription, timeout_s)

    async def idle(self, timeout_s: float | None = None) -> bool:
        """Wait until no handler runs, but for the one that asks; return whether that came true."""
        others = self._running - {asyncio.current_task()}
        if not others:
            return True
        _, pending = await asyncio.wait(others, timeout=timeout_s)
        return not pending

    async def close(self) -> None:
        """Stop receiving; return when no handler runs any more."""
        await self.stop(self._link.settings.barrier_timeout_s)
        await self.idle()
        self._closed(self)

    def _receive(self, msg: Delivery) -> None:
        self.num_requests += 1
        if len(self._running) >= self.endpoint.concurrency:
            count(names.BUS_REFUSED, template=self._template)
            self._refuse(msg, ErrorReply(code=ErrorCode.SATURATED))
            return
        if self._waits:
            task = self._tasks.spawn(self._run(msg), name=self._task_name)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        else:
            self._answer(msg)

    def _answer(self, msg: Delivery) -> None:
        """Answer at once, with a handler that never waits."""
        started = time.perf_counter_ns()
        headers = msg.headers
        with attach(headers.get(TRACEPARENT), headers.get(TRACESTATE)):
            try:
                with span(self._span, self._attributes, kind=SpanKind.CONSUMER) as current:
                    answer = self._handle_at_once(self._understand(msg.data, current))
                    self._respond(msg, encode(answer), None)
            except Exception as error:  # noqa: BLE001 - the dispatcher's net
                self._refuse(msg, self._refusal(error))
        self._took(started)

    async def _run(self, msg: Delivery) -> None:
        """Answer with a handler that may wait for others."""
        started = time.perf_counter_ns()
        headers = msg.headers
        with attach(headers.get(TRACEPARENT), headers.get(TRACESTATE)):
            try:
                with span(self._span, self._attributes, kind=SpanKind.CONSUMER) as current:
                    answer = await self._handle_waiting(self._understand(msg.data, current))
                    self._respond(msg, encode(answer), None)
            except Exception as error:  # noqa: BLE001 - the dispatcher's net
                self._refuse(msg, self._refusal(error))
        self._took(started)

    def _took(self, started_ns: int) -> None:
        spent = time.perf_counter_ns() - started_ns
        self.processing_ns += spent
        self._observe(spent / 1e9)

    def _refusal(self, error: Exception) -> ErrorReply:
        """Return what the caller is told of a failure: never the text of a fault."""
        if isinstance(error, PdbusError):
            return ErrorReply(
                code=error.code,
                detail=error.detail,
                param=error.param,
                retry_after_s=error.retry_after_s,
            )
        count(names.BUS_HANDLER_ERRORS, template=self._template)
        get_logger().error("handler failed", endpoint=self.endpoint.name, exc_info=error)
        return ErrorReply(code=ErrorCode.INTERNAL)

    def _understand(self, data: bytes, current: Span) -> Message:
        try:
            request = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            count(names.BUS_DECODE_ERRORS, template=self._template)
            get_logger().error("request not understood", endpoint=self.endpoint.name)
            raise PdbusError(ErrorCode.INVALID_REQUEST) from error
        if current.is_recording():
            current.set_attributes(about(request, data))
        return request

    def _refuse(self, msg: Delivery, reply: ErrorReply) -> None:
        spec = spec_of(reply.code)
        self.num_errors += 1
        self.last_error = reply.code
        headers = {SERVICE_ERROR: spec.text, SERVICE_ERROR_CODE: str(spec.http)}
        try:
            self._respond(msg, encode(reply), headers)
        except BusError as error:
            get_logger().error("refusal not sent", endpoint=self.endpoint.name, error=str(error))

    def _respond(self, msg: Delivery, data: bytes, headers: dict[str, str] | None) -> None:
        if not msg.reply:
            return
        try:
            self._link.post(msg.reply, data, headers)
        except BusDown:
            # The caller's deadline passes and it asks again: handlers are idempotent.
            get_logger().warning("reply not sent: bus down", endpoint=self.endpoint.name)
        except TooLarge as error:
            raise PdbusError(ErrorCode.INTERNAL, "reply too large") from error


def about(message: Message, data: bytes) -> dict[str, str | int]:
    """Return what a span says of a message: its size, and the request that it belongs to."""
    facts: dict[str, str | int] = {attributes.MESSAGING_BODY_SIZE: len(data)}
    rid = getattr(message, "rid", None)
    if rid is not None:
        facts[attributes.MESSAGING_CONVERSATION] = rid
    return facts
