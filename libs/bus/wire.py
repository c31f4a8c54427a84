"""nats-py's client with the endurance that services need.

Each override answers a fault of nats-py 2.16 that was measured against a real server, and has a
regression test of its name. Nothing here is buffered across an outage.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from nats import errors
from nats.aio.client import Client, Srv
from nats.aio.subscription import Subscription
from nats.protocol.parser import PERMISSIONS_ERR

from libs.bus.frames import Delivery, FrameParser, Handler, frame_of

__all__ = ["CONGESTED_BYTES", "WireClient"]

ResultT = TypeVar("ResultT")

CONGESTED_BYTES = 8 * 1024 * 1024
"""What may wait for a server before others wait for that."""

_SUBJECT = re.compile(r"[^\s\x00]+")
_WATCH_S = 0.02
"""How late a question may end whose answer does not come."""

_NOTHING = b"+OK\r\n"
_NO_RESPONDERS = b"NATS/1.0 503"


class WireClient(Client):
    """A connection that is never given up, and that no late or odd answer can disable."""

    _pongs: list[asyncio.Future[Any]]
    _pending: list[bytes]
    _reading_task: asyncio.Task[Any] | None

    def __init__(self) -> None:
        super().__init__()
        self._frames = self._ps = FrameParser(self)
        self.handlers: dict[int, Handler] = {}
        """Who takes the messages of which subscription where they are read."""
        self._outlet: asyncio.Transport | None = None
        """The socket of the connection that stands."""
        self._leaving = False
        """What was published in this turn of the loop leaves at its end."""
        self._asked: dict[str, tuple[asyncio.Future[Delivery], float]] = {}
        """Questions that wait for their answer, and until when, by where it comes."""
        self._watching = False
        self._numbered = 0
        self._replies = ""
        """Prefix of the subjects on which replies come; empty before the first question."""

    @property
    def pending_data_size(self) -> int:
        """Return the bytes that the server has not taken yet, those in the socket's hands too."""
        return self._pending_data_size + self._in_socket()

    def takes(self, size: int) -> bool:
        """Return whether a message of so many bytes can leave now, and need not wait for others."""
        outlet = self._outlet
        waiting = self._pending_data_size
        if outlet is not None:
            waiting += outlet.get_write_buffer_size()
        return (
            waiting <= CONGESTED_BYTES
            and size <= self._max_payload
            and self._status == Client.CONNECTED
        )

    async def queue(self, sid: int, delivery: Delivery) -> None:
        """Take a message of a subscription that has no handler, as nats-py does."""
        await self._process_msg(
            sid, delivery.subject.encode(), delivery.reply.encode(), delivery.data, delivery.head
        )

    async def complain(self, error: Exception) -> None:
        """Take in what a handler raised."""
        await self._error_cb(error)

    async def hear(self, subject: str, queue: str, handler: Handler) -> Subscription:
        """Subscribe; `handler` is called where a message is read, and must return at once."""
        sid = self._sid + 1
        self.handlers[sid] = handler
        try:
            return await self.subscribe(subject, queue)  # pyright: ignore[reportUnknownMemberType]
        except errors.Error:
            self.handlers.pop(sid, None)
            raise

    def send(self, subject: str, reply: str, data: bytes, head: bytes | None) -> None:
        """Publish, together with all else that is published in this turn of the loop.

        Raises:
            BadSubjectError: the subject cannot stand in a line.
            ConnectionClosedError, ConnectionDrainingError, OutboundBufferLimitError.
        """
        if not _SUBJECT.fullmatch(subject):
            raise errors.BadSubjectError
        if self._status != Client.CONNECTED:
            self._check_open()
        frame = frame_of(subject, reply, data, head)
        self._pending.append(frame)
        self._pending_data_size += len(frame)
        if not self._leaving:
            self._leaving = True
            asyncio.get_running_loop().call_soon(self._leave)

    def _check_open(self) -> None:
        if self.is_closed:
            raise errors.ConnectionClosedError
        if self.is_draining_pubs:
            raise errors.ConnectionDrainingError
        if not self.is_connected:
            raise errors.OutboundBufferLimitError

    def _leave(self) -> None:
        self._leaving = False
        self.leave()

    def leave(self) -> None:
        """Write now what was published in this turn of the loop so far."""
        if not self._pending or not self.is_connected or self._transport is None:
            return
        pending, self._pending = self._pending, []
        self._pending_data_size = 0
        try:
            if len(pending) == 1:
                self._transport.write(pending[0])
            else:
                self._transport.writelines(pending)
        except (OSError, RuntimeError):
            # The socket is gone; whoever reads from it acts on that.
            return

    def _in_socket(self) -> int:
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        return 0 if writer is None else writer.transport.get_write_buffer_size()

    async def ask(
        self, subject: str, data: bytes, head: bytes | None, timeout_s: float
    ) -> Delivery:
        """Send a request and return the first reply.

        Raises:
            NoRespondersError, TimeoutError: as nats-py means them.
            BadSubjectError, ConnectionClosedError, ConnectionDrainingError,
            OutboundBufferLimitError.
        """
        if not self._replies:
            await self._hear_replies()
        loop = asyncio.get_running_loop()
        self._numbered += 1
        inbox = f"{self._replies}{self._numbered}"
        answer: asyncio.Future[Delivery] = loop.create_future()
        self._asked[inbox] = answer, loop.time() + timeout_s
        if not self._watching:
            self._watching = True
            loop.call_later(_WATCH_S, self._watch, loop)
        try:
            self.send(subject, inbox, data, head)
            found = await answer
        finally:
            del self._asked[inbox]
        if found.head.startswith(_NO_RESPONDERS):
            raise errors.NoRespondersError
        return found

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the questions whose time is over; one timer for all costs less than one for each."""
        now_s = loop.time()
        for answer, until_s in self._asked.values():
            if until_s <= now_s and not answer.done():
                answer.set_exception(errors.TimeoutError())
        self._watching = bool(self._asked)
        if self._watching:
            loop.call_later(_WATCH_S, self._watch, loop)

    async def _hear_replies(self) -> None:
        prefix = f"{self.new_inbox()}."
        await self.hear(f"{prefix}*", "", self._take_reply)
        self._replies = prefix

    def _take_reply(self, reply: Delivery) -> None:
        asked = self._asked.get(reply.subject)
        if asked is not None and not asked[0].done():
            asked[0].set_result(reply)

    async def _process_err(self, err_msg: str) -> None:
        """Treat an error line of the server as the loss of this connection, at most.

        nats-py closes the client for good on any line but `permissions violation` and
        `stale connection`, whatever `max_reconnect_attempts` says.
        """
        if PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
            return
        error = errors.Error(f"nats: {err_msg.strip(chr(39))}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _process_pong(self) -> None:
        """Skip a pong whose flush has been cancelled or has timed out.

        nats-py sets the result of the cancelled future, and the error ends its read loop: the
        connection stays deaf until two more pings have gone unanswered.
        """
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    def _shorten(self) -> None:
        """Have messages handled by the call that reads them, while the read loop only waits.

        To wake that loop for each message costs a process that has slept as much as the message.
        The loop gets what is left: half a frame, and all that is no message for a handler.
        """
        reader: asyncio.StreamReader | None = getattr(self._transport, "_io_reader", None)
        self._outlet = None
        if reader is None:
            return
        writer: asyncio.StreamWriter | None = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            self._outlet = cast("asyncio.Transport", writer.transport)
        feed, parser = reader.feed_data, self._frames

        def take(data: bytes) -> None:
            waiter: asyncio.Future[None] | None = getattr(reader, "_waiter", None)
            idle = waiter is not None and not waiter.done()
            if idle and self.is_connected and not getattr(reader, "_buffer", b"?"):
                data = data[parser.take(data) :]
                if not data and parser.troubled:
                    # A line that says nothing wakes the loop, which complains.
                    data = _NOTHING
            if data:
                feed(data)

        reader.feed_data = take  # pyright: ignore[reportAttributeAccessIssue] - sockets give bytes

    async def _read_loop(self) -> None:
        """Reconnect if the read loop has ended on its own: nats-py only logs that."""
        self._shorten()
        await super()._read_loop()
        if self._status == Client.CONNECTED and self._reading_task is asyncio.current_task():
            await self._process_op_err(errors.StaleConnectionError())

    async def _attempt_reconnect(self) -> None:
        """Go on after what nats-py does not expect while it reconnects.

        uvloop raises RuntimeError for a socket that the server closed at once, and a malformed
        greeting raises ValueError; both would end the only task that reconnects.
        """
        while not self.is_closed:
            try:
                await super()._attempt_reconnect()
                return
            except (RuntimeError, ValueError) as error:
                self._status = Client.RECONNECTING
                await self._error_cb(errors.Error(f"nats: {error!r}"))
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                # As in `close`; the socket is given up, so that it is not waited for again.
                self._transport = None

    async def _connect_to_server(self, s: Srv) -> None:
        """Close the socket of the last attempt; nats-py leaves it open when a handshake fails."""
        if self._transport is not None:
            self._transport.close()
        await super()._connect_to_server(s)

    async def close(self) -> None:
        """Close in every state, and raise CancelledError only to a task that was cancelled.

        nats-py fails where `connect` ended before it had begun. And where the task that reconnects
        is stopped while it waits for the old socket, it waits for a future that it has cancelled:
        a cancellation that nobody asked for, and that would end the caller without a word.
        """
        if self._flush_queue is None:
            return
        try:
            await super().close()
        except asyncio.CancelledError:
            if _is_cancelled():
                raise

    async def flush(self, *arguments: Any, **options: Any) -> None:
        """Flush as nats-py does, and obey a cancellation that comes together with the pong."""
        await _obedient(super().flush(*arguments, **options))

    def drop_unsent(self) -> int:
        """Forget the commands that were not written to the lost socket; return how many.

        They would be sent after the outage, however long it was. Subscriptions are repeated by
        nats-py itself.
        """
        dropped = len(self._pending)
        self._pending = []
        self._pending_data_size = 0
        return dropped

    async def stop_subscription(self, subscription: Subscription, timeout_s: float) -> None:
        """Stop a subscription after what was sent to it has reached its callback.

        In every state of the connection the subscription is gone when this returns. nats-py's own
        `drain` is no barrier (its ping overtakes the UNSUB) and refuses to work while
        reconnecting.
        """
        sid: int = subscription._id  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        queue: asyncio.Queue[Any] = subscription._pending_queue  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if sid not in self._subs:
            return
        epoch = self.stats["reconnects"]
        try:
            if self.is_connected:
                async with asyncio.timeout(timeout_s):
                    await self._send_unsubscribe(sid)
                    await self.settle(timeout_s)
                    await queue.join()
        except (TimeoutError, errors.Error):
            # The server is away: nothing more can arrive, and the rest is dropped below.
            pass
        finally:
            self.handlers.pop(sid, None)
            subscription._stop_processing()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            self._remove_sub(sid)
            if self.is_connected and self.stats["reconnects"] != epoch:
                # It was repeated on the new connection; without this the server would go on to
                # hand a queue group's messages to nobody.
                await self._send_unsubscribe(sid)

    async def settle(self, timeout_s: float) -> None:
        """Wait until the server has processed everything that was sent before.

        One `flush` is not enough: it writes its ping ahead of the commands that still wait.
        """
        await asyncio.sleep(0)
        for _ in range(2):
            await self.flush(timeout_s)  # pyright: ignore[reportArgumentType]


async def _obedient(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Raise a cancellation that `asyncio.wait_for` keeps to itself.

    Before Python 3.12 it returns its result where that has come in the same turn of the loop. A
    loop of requests would never hear that it is cancelled, and its owner would wait for ever.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    result = await work
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
