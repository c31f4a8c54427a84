"""One client's connection: bounded heads, writes that leave at once, an end for who does not read.

What a client does to its own connection stays there: a head that is too large or too slow, and a
client that takes nothing, cost it the connection and nobody else anything.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from proto.errors import ErrorCode, PdbusError
from proto.openai.error import error_body
from services.gateway.edge.turn import Outbound, Turn
from services.gateway.edge.until_close import until_close

__all__ = [
    "ABORT",
    "BODY",
    "PRESENCE",
    "Body",
    "Connection",
    "ConnectionLimits",
    "Presence",
]

ABORT = "pdbus.abort"
"""Key of the scope under which a function drops the connection and what it still holds."""

BODY = "pdbus.body"
"""Key of the scope under which the `Body` of the answer stands."""

PRESENCE = "pdbus.presence"
"""Key of the scope under which the `Presence` of the client stands."""

_BEGIN = b"HTTP/1.1 200 OK\r\n%stransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n"
_HEAD = re.compile(rb"(?:[\t\x20-\x7e\x80-\xff]+\r\n)*")
"""What the lines of a head may hold."""

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may do; times in seconds."""

    head_bytes: int = 32_768
    """Request line and headers together."""
    headers: int = 100
    """Number of headers."""
    head_s: float = 15.0
    """Until a head has arrived, from the connection, or from its first byte on a used one."""
    unread_s: float = 60.0
    """How long a full connection may take nothing; then it is dropped."""


class Body:
    """The body of one answer, for writes that need not wait; beside it `send` works as ever.

    Args:
        cycle: uvicorn's state of the answer.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def free(self) -> bool:
        """Whether the head has been sent, the body goes on, and the client keeps up."""
        cycle = self._cycle
        return not (
            self._flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.response_started
            or not cycle.chunked_encoding
        )

    @property
    def asked_whole(self) -> bool:
        """Whether the body of the request has arrived, so that nothing waits to read it."""
        return not self._cycle.more_body

    @property
    def fresh(self) -> bool:
        """Whether nothing has been sent, and `begin` may be called; where not, `send` can."""
        cycle = self._cycle
        return (
            not (self._flow.write_paused or cycle.disconnected or cycle.response_started)
            and cycle.keep_alive
            and cycle.scope["http_version"] == "1.1"
            and cycle.scope["method"] == "POST"
        )

    def begin(self, headers: Sequence[tuple[bytes, bytes]], data: bytes) -> None:
        """Send the head of an answer of unknown length, and its first part; only while fresh.

        Raises:
            PdbusError: internal, as a header is none.
        """
        cycle = self._cycle
        lines = [b"%s: %s\r\n" % one for one in (*cycle.default_headers, *headers)]
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or not _HEAD.fullmatch(head):
            raise PdbusError(ErrorCode.INTERNAL, "a header cannot be sent")
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = True
        self._write(_BEGIN % (head, len(data), data))

    def write(self, data: bytes) -> bool:
        """Write a part that is not empty if it is free, and return whether it was."""
        cycle = self._cycle
        if (
            self._flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.response_started
            or not cycle.chunked_encoding
        ):
            return False
        self._write(b"%x\r\n%s\r\n" % (len(data), data))
        return True

    def end(self, data: bytes) -> None:
        """Write the last part, which is not empty, and end the answer; only while it is free."""
        cycle = self._cycle
        self._write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class Presence:
    """Whether the client of one exchange is still there; its connection tells.

    Args:
        read_on: lets the connection read, as its end is not seen otherwise.
    """

    __slots__ = ("_left", "_read_on", "gone")

    def __init__(self, read_on: Callable[[], None] | None = None) -> None:
        self.gone = False
        self._read_on = read_on
        self._left: Callable[[], None] | None = None

    def watch(self, left: Callable[[], None] | None) -> None:
        """Have `left` called when the client leaves, in place of what was to be called so far."""
        self._left = left
        if left is not None and self._read_on is not None:
            self._read_on()

    def leave(self) -> None:
        """Tell that the client has left."""
        self.gone = True
        if self._left is not None:
            self._left()


class _HeadTooLarge(Exception):
    """The parser is to stop."""


class Connection(HttpToolsProtocol):
    """Uvicorn's protocol with limits, TCP_NODELAY, and errors in our shape.

    Args:
        limits: what the client may do.
        new_id: makes the request id of an answer to what could not be read.
        turn: gathers what is written; one for all connections of a server.
    """

    def __init__(
        self,
        *args: Any,
        limits: ConnectionLimits,
        new_id: Callable[[], str],
        turn: Turn,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._turn = turn
        self._outbound: Outbound | None = None
        self._present: list[tuple[RequestResponseCycle, Presence]] = []
        """The exchange that runs, and those that were sent behind it."""
        self._limits = limits
        self._new_id = new_id
        self._in_head = True
        self._head_bytes = 0
        self._unparsed_bytes = 0
        """What came of a head that has not ended, whether the parser has told of it or not."""
        self._refusal = ErrorCode.INVALID_REQUEST
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride] - as in uvicorn
        self, transport: asyncio.Transport
    ) -> None:
        """Begin."""
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._outbound = Outbound(transport, self._turn)
        self._head_timer = self.loop.call_later(self._limits.head_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_head_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)
        for cycle, presence in self._present:
            if not cycle.response_complete:
                cycle.disconnected = True
                presence.leave()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self._in_head:
            self._unparsed_bytes += len(data)
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(self._limits.head_s, self._head_is_late)
        super().data_received(data)
        # What comes without a line end reaches no callback of the parser.
        too_much = self._in_head and self._unparsed_bytes > self._limits.head_bytes
        if too_much and not self.transport.is_closing():
            self._refusal = ErrorCode.HEADERS_TOO_LARGE
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Take the first byte of a head."""
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # pyright: ignore[reportGeneralTypeIssues] - ours

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request line."""
        self._head_bytes += len(url)
        if self._head_bytes > self._limits.head_bytes:
            self._refuse_head()
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        # As uvicorn does it, in one step: there are ten of them and more.
        headers = self.headers
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes or len(headers) >= self._limits.headers:
            self._refuse_head()
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Take the end of a head."""
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()
        # Its task has not run yet.
        self.cycle.transport = cast("asyncio.Transport", self._outbound)
        if self.scope["http_version"] == "1.0":
            until_close(self.cycle)
        presence = Presence(self.flow.resume_reading)
        self._present = [one for one in self._present if not one[0].response_complete]
        self._present.append((self.cycle, presence))
        self.scope[BODY] = Body(self.cycle)  # pyright: ignore[reportGeneralTypeIssues] - ours
        self.scope[PRESENCE] = presence  # pyright: ignore[reportGeneralTypeIssues] - ours

    def on_message_complete(self) -> None:
        """Take the end of a body: a head is what comes next."""
        self._in_head = True
        self._head_bytes = self._unparsed_bytes = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Wait for the client, for so long."""
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self._limits.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        self._stop_unread_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what could not be read, and close."""
        error = PdbusError(self._refusal, msg)
        body = msgspec.json.encode(error_body(error))
        status = error.spec.http
        head = (
            b"HTTP/1.1 %d %s\r\n"
            b"content-type: application/json\r\n"
            b"content-length: %d\r\n"
            b"x-request-id: %s\r\n"
            b"connection: close\r\n\r\n"
        )
        facts = (status, _REASONS[status], len(body), self._new_id().encode())
        self._settle()
        self.transport.write(head % facts + body)
        self.transport.close()

    def shutdown(self) -> None:
        """End after the answer that runs, at once where none does."""
        self._settle()
        super().shutdown()

    def _settle(self) -> None:
        if self._outbound is not None:
            self._outbound.leave()

    def _refuse_head(self) -> NoReturn:
        self._refusal = ErrorCode.HEADERS_TOO_LARGE
        raise _HeadTooLarge

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._unparsed_bytes and not self.transport.is_closing():
            self._refusal = ErrorCode.BODY_TIMEOUT
            self.send_400_response(f"The head did not arrive within {self._limits.head_s:g} s.")
            return
        self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
