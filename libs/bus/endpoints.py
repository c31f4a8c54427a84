"""Answering requests: concurrent handlers, a typed reply for every outcome, an orderly end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec
from nats.aio.subscription import Subscription

from libs.bus.api import BusDown, BusError, Endpoint, TooLarge
from libs.bus.connect import Link
from libs.bus.frames import Delivery
from libs.telemetry import SpanKind, attach, attributes, count, get_logger, names, observe, span
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
        self._decode = msgspec.msgpack.Decoder(endpoint.request).decode
        self._running: set[asyncio.Task[Any]] = set()
        self._subscription: Subscription | None = None
        self._template = template(endpoint.subject)
        self._span = names.span_process(self._template)
        self._task_name = f"serve {endpoint.name}"
        self._labels = {attributes.MESSAGING_TEMPLATE: self._template}
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
        task = self._tasks.spawn(self._run(msg), name=self._task_name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, msg: Delivery) -> None:
        started = time.perf_counter_ns()
        headers = msg.headers
        with attach(headers.get(TRACEPARENT), headers.get(TRACESTATE)):
            refusal = await self._handle(msg)
            if refusal is not None:
                self._refuse(msg, refusal)
        spent = time.perf_counter_ns() - started
        self.processing_ns += spent
        observe(names.MESSAGING_PROCESS_DURATION, spent / 1e9, **self._labels)

    async def _handle(self, msg: Delivery) -> ErrorReply | None:
        """Run the handler and send its reply; return what to refuse with, if it failed."""
        try:
            with span(self._span, self._attributes, kind=SpanKind.CONSUMER) as current:
                request = self._understand(msg.data)
                current.set_attributes(about(request, msg.data))
                reply = await self.endpoint.handler(request)
                self._respond(msg, encode(reply), None)
        except PdbusError as error:
            return ErrorReply(
                code=error.code,
                detail=error.detail,
                param=error.param,
                retry_after_s=error.retry_after_s,
            )
        except Exception:  # noqa: BLE001 - the dispatcher's net
            # The caller gets a typed answer, and never the text of a fault.
            count(names.BUS_HANDLER_ERRORS, template=self._template)
            get_logger().exception("handler failed", endpoint=self.endpoint.name)
            return ErrorReply(code=ErrorCode.INTERNAL)
        return None

    def _understand(self, data: bytes) -> Message:
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            count(names.BUS_DECODE_ERRORS, template=self._template)
            get_logger().error("request not understood", endpoint=self.endpoint.name)
            raise PdbusError(ErrorCode.INVALID_REQUEST) from error

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
