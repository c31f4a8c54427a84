"""Messages between service and host: length-prefixed msgpack frames on a local socket.

A frame is four bytes of length (big-endian) and an array of messages. All messages that are sent
in one turn of the loop leave in one frame and one write.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Generic, TypeVar

import msgspec

from proto.base import Message, ProtocolError, encode
from proto.host import FromHost, ToHost

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

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">IBI")
"""Length of the body, then the head of a msgpack array with a 32-bit count."""
_ARRAY32 = 0xDD
_ARRAY_BYTES = 5
_READ_BYTES = 1 << 20


class ChannelClosed(Exception):
    """The other end is gone."""


class FrameTooLarge(ValueError):
    """A message does not fit in a frame."""


class Channel(Generic[Out, In]):
    """One end of the socket. Not thread-safe: use it on its loop only."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        incoming: object,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.msgpack.Decoder[list[In]] = msgspec.msgpack.Decoder(
            list[incoming]  # pyright: ignore[reportInvalidTypeForm] - the union is a value
        )
        self._max = max_frame_bytes
        self._queue: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def send(self, message: Out) -> None:
        """Queue a message; it leaves with all others of this turn of the loop.

        Messages for an end that is gone are dropped: `receive` tells that it is gone.

        Raises:
            FrameTooLarge: the message is over the limit.
        """
        body = encode(message)
        if len(body) + _ARRAY_BYTES > self._max:
            text = f"message of {len(body)} bytes; the limit is {self._max}"
            raise FrameTooLarge(text)
        if not self._queue:
            self._loop.call_soon(self.flush)
        self._queue.append(body)

    def flush(self) -> None:
        """Write what is queued."""
        if self._queue and not self._writer.is_closing():
            self._writer.write(frames(self._queue, self._max))
        self._queue = []

    async def drain(self) -> None:
        """Wait until the other end keeps up.

        Raises:
            ChannelClosed: the other end is gone.
        """
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error

    async def receive(self) -> list[In]:
        """Return the messages of the next frame.

        Raises:
            ChannelClosed: the other end is gone.
            ProtocolError: the bytes are not such messages, or the frame is over the limit.
        """
        try:
            header = await self._reader.readexactly(_LENGTH.size)
            (length,) = _LENGTH.unpack(header)
            if length > self._max:
                text = f"frame of {length} bytes; the limit is {self._max}"
                raise ProtocolError(text)
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ChannelClosed(str(error)) from error
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(str(error)) from error

    def close(self) -> None:
        """Write what is queued and close this end."""
        self.flush()
        self._writer.close()


HostEnd = Channel[FromHost, ToHost]
"""The channel as the host holds it."""

ServiceEnd = Channel[ToHost, FromHost]
"""The channel as the service holds it."""


async def open_host_end(sock: socket.socket) -> HostEnd:
    """Return the host's end on a connected socket."""
    reader, writer = await _streams(sock)
    return HostEnd(reader, writer, ToHost)


async def open_service_end(sock: socket.socket) -> ServiceEnd:
    """Return the service's end on a connected socket."""
    reader, writer = await _streams(sock)
    return ServiceEnd(reader, writer, FromHost)


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


async def _streams(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
    return await asyncio.open_unix_connection(sock=sock, limit=_READ_BYTES)
