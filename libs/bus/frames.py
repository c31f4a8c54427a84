"""NATS' protocol as bytes: messages in, messages out, each at the price of a few slices.

nats-py's own parser looks at each message with several regular expressions, moves the rest of its
buffer for each, and hands the message to a queue that a task of its subscription empties. That was
most of what a message cost a process; here a message reaches its handler where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

__all__ = [
    "Delivery",
    "FrameParser",
    "Handler",
    "Receiver",
    "frame_of",
    "head_of",
    "headers_of",
]

_LINE = b"NATS/1.0"
_END = b"\r\n"
_M, _H = ord("M"), ord("H")
_MESSAGE, _WITH_HEAD = b"MSG", b"HMSG"
_LONGEST_LINE = 4096
_STATUS_DIGITS = 3
_LINE_BREAKS = str.maketrans("\r\n", "  ")


class Delivery(msgspec.Struct, eq=False):
    """A message that has arrived."""

    subject: str
    reply: str
    """Where an answer goes; empty where none is wanted."""
    data: bytes
    head: bytes = b""
    """Its headers as they came."""
    known: dict[str, str] | None = None
    """They, once they were asked for."""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers, by their exact names; a status is among them as `Status`."""
        if self.known is None:
            self.known = headers_of(self.head) if self.head else {}
        return self.known


Handler = Callable[[Delivery], None]
"""Takes a message; it must return at once."""


class Receiver(Protocol):
    """Whom a parser hands its messages to."""

    async def complain(self, error: Exception) -> None:
        """Take in what a handler raised."""
        ...

    async def queue(self, sid: int, delivery: Delivery) -> None:
        """Take a message of a subscription that has no handler."""
        ...

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """Return who takes the messages of which subscription where they are read."""
        ...


class FrameParser(Parser):
    """Understands what a server sends; all but messages is nats-py's to understand."""

    def __init__(self, receiver: Receiver) -> None:
        self._connection = 0
        super().__init__(receiver)  # pyright: ignore[reportUnknownMemberType]
        self._receiver = receiver
        self._rest = bytearray()
        """The beginning of a frame whose end has not come."""
        self._wanted = 0
        """How long that frame is, where it is known."""
        self._faults: list[Exception] = []
        """What handlers have raised within `take`."""

    def reset(self) -> None:
        """Forget what has come of a connection."""
        super().reset()
        self._rest = bytearray()
        self._wanted = 0
        self._connection += 1

    @property
    def troubled(self) -> bool:
        """Whether `parse` has something to complain of."""
        return bool(self._faults)

    async def parse(self, data: bytes = b"") -> None:
        """Take in what was read.

        Raises:
            ProtocolError: it is not NATS' protocol.
        """
        await self._complain()
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data, self._rest = bytes(self._rest), bytearray()
        self._wanted = 0
        at, end, connection = 0, len(data), self._connection
        while at < end:
            eol = data.find(_END, at)
            if eol < 0:
                if end - at > _LONGEST_LINE and data[at] in {_M, _H}:
                    raise ProtocolError("nats: endless control line")
                break
            if data[at] in {_M, _H}:
                after = await self._message(data, at, eol)
                if not after:
                    break
                at = after
            else:
                line, at = data[at : eol + 2], eol + 2
                await super().parse(line)
                if self._connection != connection:
                    # That line was the end of the connection.
                    return
        if at < end:
            self._rest += memoryview(data)[at:]

    async def _complain(self) -> None:
        while self._faults:
            await self._receiver.complain(self._faults.pop(0))

    def take(self, data: bytes) -> int:
        """Hand on the whole messages with which `data` begins, without any task.

        Returns how many bytes they were. What is anything else, or has no handler, is left for
        `parse`, and so is all that follows the beginning of a frame.
        """
        at, end, handlers = 0, len(data), self._receiver.handlers
        while at < end and not self._rest and data[at] in {_M, _H}:
            eol = data.find(_END, at)
            if eol < 0:
                break
            try:
                sid, delivery, after = _delivery(data, at, eol)
            except ProtocolError:
                # Whoever parses it again acts on that.
                break
            handler = handlers.get(sid)
            if delivery is None or handler is None:
                break
            at = after
            try:
                handler(delivery)
            except Exception as error:  # noqa: BLE001 - the dispatcher's net
                self._faults.append(error)
                break
        return at

    async def _message(self, data: bytes, at: int, eol: int) -> int:
        """Hand on the message that begins at `at`; return where it ends, 0 if it is not whole."""
        sid, delivery, after = _delivery(data, at, eol)
        if delivery is None:
            self._wanted = after - at
            return 0
        handler = self._receiver.handlers.get(sid)
        if handler is None:
            await self._receiver.queue(sid, delivery)
            return after
        try:
            handler(delivery)
        except Exception as error:  # noqa: BLE001 - the dispatcher's net
            # One message must not end the connection.
            await self._receiver.complain(error)
        return after


def _delivery(data: bytes, at: int, eol: int) -> tuple[int, Delivery | None, int]:
    """Return the subscription of the message at `at`, the message if it is whole, and its end."""
    verb, *words = data[at:eol].split()
    reply, head_size = b"", 0
    try:
        if verb == _MESSAGE:
            subject, number, *between, last = words
        elif verb == _WITH_HEAD:
            subject, number, *between, first, last = words
            head_size = int(first)
        else:
            raise ProtocolError("nats: unknown protocol")
        if between:
            (reply,) = between
        sid, size = int(number), int(last)
    except ValueError as error:
        raise ProtocolError("nats: malformed message line") from error
    start = eol + 2
    stop = start + size
    if stop + 2 > len(data):
        return sid, None, stop + 2
    if head_size:
        middle = start + head_size
        head, body = data[start:middle], data[middle:stop]
    else:
        head, body = b"", data[start:stop]
    return sid, Delivery(subject.decode(), reply.decode(), body, head), stop + 2


def frame_of(subject: str, reply: str, data: bytes, head: bytes | None) -> bytes:
    """Return a publication as it stands on the wire."""
    to = f"{subject} {reply}" if reply else subject
    if not head:
        return b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(data), data)
    size = len(head) + len(data)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (to.encode(), len(head), size, head, data)


def head_of(headers: dict[str, str] | None) -> bytes | None:
    """Return headers as they stand on the wire, where the server counts them as payload."""
    if not headers:
        return None
    lines = [f"{key}: {value.translate(_LINE_BREAKS)}\r\n" for key, value in headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


def headers_of(head: bytes) -> dict[str, str]:
    """Return what the head of a message says; what is no header is left out."""
    first, *lines = head.split(_END)
    found: dict[str, str] = {}
    status, _, description = first[len(_LINE) :].strip().partition(b" ")
    if status.isdigit() and len(status) == _STATUS_DIGITS:
        found["Status"] = status.decode()
        if description:
            found["Description"] = description.decode("utf-8", "replace")
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.strip()
        if colon and name.isascii():
            found[name.decode()] = value.strip().decode("utf-8", "replace")
    return found
