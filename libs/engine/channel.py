"""Messages between service and host: length-prefixed msgpack frames on a local socket.

A frame is four bytes of length (big-endian) and an array of messages. All messages that are sent
in one turn of the loop leave in one frame and one write, and plain tokens of many jobs as columns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from proto.base import Message, ProtocolError, encode
from proto.host import FromHost, JobTokens, StepTokens, ToHost
from proto.ids import JobId

__all__ = [
    "MAX_FRAME_BYTES",
    "Channel",
    "ChannelClosed",
    "FrameTooLarge",
    "HostEnd",
    "ServiceEnd",
    "frames",
    "open_host_end",
    "open_service_end",
]

In = TypeVar("In", bound=Message)
Out = TypeVar("Out", bound=Message)
EndT = TypeVar("EndT", bound=asyncio.Protocol)

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">IBI")
"""Length of the body, then the head of a msgpack array with a 32-bit count."""
_ARRAY32 = 0xDD
_ARRAY_BYTES = 5
_SHORT = 1 << 16
"""Characters of a text that is short beside any frame."""


class ChannelClosed(Exception):
    """The other end is gone."""


class FrameTooLarge(ValueError):
    """A message does not fit in a frame."""


class Channel(asyncio.Protocol, Generic[Out, In]):
    """One end of the socket. Not thread-safe: use it on its loop only.

    What has come is decoded where it is read, and waits for `receive` unless somebody takes it.

    Args:
        incoming: the kinds of messages that the other end sends.
    """

    def __init__(self, incoming: object, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder: msgspec.msgpack.Decoder[list[In]] = msgspec.msgpack.Decoder(
            list[incoming]  # pyright: ignore[reportInvalidTypeForm] - the union is a value
        )
        self._max = max_frame_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._queue: list[Message | msgspec.Raw] = []
        self._jobs: list[JobId] = []
        """Of the plain tokens that were sent last, behind what is queued; below the tokens."""
        self._ids: list[bytes] = []
        self._texts: list[str] = []
        self._rest = b""
        """The beginning of a frame whose end has not come."""
        self._parts: list[bytes] = []
        """What came of it since, where it is large."""
        self._wanted = 0
        """Bytes that are still to come before it can be whole."""
        self._arrived: deque[list[In]] = deque()
        self._take: Callable[[list[In]], None] | None = None
        self._end: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # What the loop calls

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride] - as streams do
        self, transport: asyncio.Transport
    ) -> None:
        """Begin."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop(ChannelClosed(str(exc or "the other end is gone")))

    def pause_writing(self) -> None:
        """Make `drain` wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let `drain` go on."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Take in what was read."""
        if self._end is not None:
            return
        if self._wanted > len(data):
            self._wanted -= len(data)
            self._parts.append(data)
            return
        if self._rest or self._parts:
            data = b"".join((self._rest, *self._parts, data))
            self._rest, self._parts = b"", []
        self._wanted = 0
        try:
            self._split(data)
        except ProtocolError as error:
            self._stop(error)

    # What the two sides call

    def send(self, message: Out) -> None:
        """Queue a message; it leaves with all others of this turn of the loop.

        Messages for an end that is gone are dropped: `receive` tells that it is gone.

        Raises:
            FrameTooLarge: the message is over the limit.
        """
        jobs, queue = self._jobs, self._queue
        if not jobs and not queue:
            self._loop.call_soon(self.flush)
        if type(message) is JobTokens and message.details is None and len(message.text) < _SHORT:
            jobs.append(message.job)
            self._ids.append(message.ids)
            self._texts.append(message.text)
            return
        body = encode(message)
        if len(body) + _ARRAY_BYTES > self._max:
            text = f"message of {len(body)} bytes; the limit is {self._max}"
            raise FrameTooLarge(text)
        self._close_step()
        queue.append(msgspec.Raw(body))

    def flush(self) -> None:
        """Write what is queued."""
        self._close_step()
        transport, queue = self._transport, self._queue
        self._queue = []
        if not queue or transport is None or transport.is_closing():
            return
        body = self._encode(queue)
        if len(body) <= self._max:
            transport.write(_LENGTH.pack(len(body)) + body)
            return
        apart = [m.apart() if isinstance(m, StepTokens) else (m,) for m in queue]
        bodies = [self._encode(message) for messages in apart for message in messages]
        transport.write(frames(bodies, self._max))

    def _close_step(self) -> None:
        """Queue the tokens that were sent last."""
        jobs, ids, texts = self._jobs, self._ids, self._texts
        if jobs:
            self._queue.append(StepTokens(jobs=tuple(jobs), ids=tuple(ids), texts=tuple(texts)))
            self._jobs, self._ids, self._texts = [], [], []

    async def drain(self) -> None:
        """Wait until the other end keeps up.

        Raises:
            ChannelClosed: the other end is gone.
        """
        await self._writable.wait()
        if isinstance(self._end, ChannelClosed):
            raise self._end

    def hand_on(self, take: Callable[[list[In]], None]) -> None:
        """Hand the messages of each frame to `take` where they are read; it must return at once.

        `receive` returns nothing from then on, but tells the end.
        """
        self._take = take
        while self._arrived:
            self._give(self._arrived.popleft())

    async def receive(self) -> list[In]:
        """Return the messages of the next frame.

        Raises:
            ChannelClosed: the other end is gone.
            ProtocolError: the bytes are not such messages, or the frame is over the limit.
        """
        while not self._arrived:
            if self._end is not None:
                raise self._end
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._arrived.popleft()

    def close(self) -> None:
        """Write what is queued and close this end."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def _split(self, data: bytes) -> None:
        """Take the frames that are whole; keep the rest."""
        at, end = 0, len(data)
        while end - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > self._max:
                text = f"frame of {length} bytes; the limit is {self._max}"
                raise ProtocolError(text)
            start, stop = at + _LENGTH.size, at + _LENGTH.size + length
            if stop > end:
                self._wanted = stop - end
                break
            try:
                messages = self._decoder.decode(memoryview(data)[start:stop])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ProtocolError(str(error)) from error
            at = stop
            self._give(messages)
        self._rest = data[at:]

    def _give(self, messages: list[In]) -> None:
        if self._take is None:
            self._arrived.append(messages)
            self._wake()
        else:
            self._take(messages)

    def _stop(self, end: Exception) -> None:
        if self._end is None:
            self._end = end
        self._writable.set()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


HostEnd = Channel[FromHost, ToHost]
"""The channel as the host holds it."""

ServiceEnd = Channel[ToHost, FromHost]
"""The channel as the service holds it."""


async def open_host_end(sock: socket.socket) -> HostEnd:
    """Return the host's end on a connected socket."""
    return await _open(sock, lambda: HostEnd(ToHost))


async def open_service_end(sock: socket.socket) -> ServiceEnd:
    """Return the service's end on a connected socket."""
    return await _open(sock, lambda: ServiceEnd(FromHost))


def frames(bodies: list[bytes], max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return encoded messages as one frame, or as more where one would be over the limit."""
    out: list[bytes] = []
    batch: list[bytes] = []
    size = _ARRAY_BYTES
    for body in bodies:
        if batch and size + len(body) > max_frame_bytes:
            out += [_HEADER.pack(size, _ARRAY32, len(batch)), *batch]
            batch, size = [], _ARRAY_BYTES
        batch.append(body)
        size += len(body)
    out += [_HEADER.pack(size, _ARRAY32, len(batch)), *batch]
    return b"".join(out)


async def _open(sock: socket.socket, make: Callable[[], EndT]) -> EndT:
    sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
    loop = asyncio.get_running_loop()
    _, end = await loop.create_unix_connection(make, sock=sock)
    return end
