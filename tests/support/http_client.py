"""A plain HTTP client on raw sockets, for tests that hang up, stop reading, or count bytes.

It never retries and never hides how a connection ended. What it reads is checked against OpenAI's
schemas.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.checked.answers import AnswerCheck

__all__ = ["Exchange", "Reply", "chat_body", "get", "post"]

_SMALL_SEGMENT = 200


def chat_body(text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat request."""
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
    } | fields


@dataclass(slots=True)
class Reply:
    """What came back."""

    status: int = 0
    """0 if the connection ended before the head of an answer."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    whole: bool = False
    """Whether HTTP's own framing says that the body is complete."""
    seconds: float = 0.0

    @property
    def events(self) -> list[Any]:
        """The JSON of all SSE events that came whole; `[DONE]` stands as that text."""
        found: list[Any] = []
        for frame in self.body.split(b"\n\n")[:-1]:
            if frame.startswith(b"data: "):
                data = frame.removeprefix(b"data: ")
                found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
        return found

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def is_stream(self) -> bool:
        """Whether the body is an event stream."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def error(self) -> dict[str, Any] | None:
        """The OpenAI error, be it the whole body or an event of a stream."""
        if self.is_stream:
            errors = [e["error"] for e in self.events if isinstance(e, dict) and "error" in e]
            return errors[0] if errors else None
        return self.json.get("error") if self.status and self.whole else None

    @property
    def claims_completeness(self) -> bool:
        """Whether a client must take this for a complete answer."""
        if self.status != 200 or not self.whole:
            return False
        if not self.is_stream:
            return "error" not in self.json
        return "[DONE]" in self.events or bool(self.finish_reason)

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, as the answer says."""
        choices = [c for e in self._chunks() for c in e.get("choices", [])]
        return next((c["finish_reason"] for c in choices if c.get("finish_reason")), None)

    @property
    def text(self) -> str:
        """The text of the answer."""
        parts: list[str] = []
        for chunk in self._chunks():
            for choice in chunk.get("choices", []):
                part = choice.get("delta") or choice.get("message") or {}
                parts.append(part.get("content") or "")
        return "".join(parts)

    @property
    def rid(self) -> str:
        """The request id."""
        return self.headers.get("x-request-id", "")

    def _chunks(self) -> list[dict[str, Any]]:
        if self.is_stream:
            return [event for event in self.events if isinstance(event, dict)]
        return [self.json] if self.status == 200 and self.whole else []


class Exchange:
    """One request on one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
    ) -> None:
        self.reply = Reply()
        self._check = AnswerCheck(path)
        self._reader = reader
        self._writer = writer
        self._raw = b""
        self._started = asyncio.get_running_loop().time()

    @classmethod
    async def open(
        cls,
        port: int,
        method: str,
        path: str,
        body: bytes = b"",
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
        *,
        receive_bytes: int | None = None,
    ) -> Exchange:
        """Connect and send a request.

        `receive_bytes` bounds what waits unread on this side, so that a slow reader is felt by the
        other one.
        """
        if receive_bytes is None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        else:
            with socket.socket() as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
                # On a loopback's large segments the kernel would keep megabytes for the sender.
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALL_SEGMENT)
                made.setblocking(False)
                await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
                reader, writer = await asyncio.open_connection(sock=made.dup(), limit=receive_bytes)
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        )
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head += "\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return cls(reader, writer, path)

    async def finish(self, timeout_s: float = 30.0) -> Reply:
        """Read until the other side closes, and return what came."""
        try:
            async with asyncio.timeout(timeout_s):
                while data := await self._reader.read(65536):
                    self._take(data)
        except ConnectionError:
            pass  # the reply shows how far it came
        finally:
            self.hang_up()
        self._checked()
        return self.reply

    async def sip(self, size: int, pause_s: float, timeout_s: float = 30.0) -> Reply:
        """Read as `finish` does, but at most `size` bytes at a time, with pauses."""
        try:
            async with asyncio.timeout(timeout_s):
                while data := await self._reader.read(size):
                    self._take(data)
                    await asyncio.sleep(pause_s)
        except ConnectionError:
            pass  # the reply shows how far it came
        finally:
            self.hang_up()
        self._checked()
        return self.reply

    async def until(self, part: bytes, timeout_s: float = 10.0) -> Reply:
        """Read until the body has `part`; the connection stays open."""
        async with asyncio.timeout(timeout_s):
            while part not in self.reply.body:
                data = await self._reader.read(65536)
                if not data:
                    raise AssertionError(f"closed before {part!r}: {self.reply}")
                self._take(data)
        self._checked()
        return self.reply

    def hang_up(self) -> None:
        """Close the connection."""
        self._writer.close()

    def _checked(self) -> None:
        reply = self.reply
        kind = reply.headers.get("content-type", "")
        self._check.feed(reply.status, kind, reply.body, whole=reply.whole)

    def _take(self, data: bytes) -> None:
        self._raw += data
        head, found, rest = self._raw.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        reply = self.reply
        reply.status = int(lines[0].split(" ")[1])
        pairs = (line.split(":", 1) for line in lines[1:])
        reply.headers = {name.strip().lower(): value.strip() for name, value in pairs}
        if reply.headers.get("transfer-encoding") == "chunked":
            reply.body, reply.whole = _unchunk(rest)
        else:
            reply.body = rest
            reply.whole = len(rest) == int(reply.headers.get("content-length", -1))
        reply.seconds = asyncio.get_running_loop().time() - self._started


async def post(
    port: int, body: Any, *, timeout_s: float = 30.0, headers: Mapping[str, str] | None = None
) -> Reply:
    """Send a chat request and read the whole reply; `body` may be bytes or a JSON value."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    exchange = await Exchange.open(port, "POST", "/v1/chat/completions", data, headers=headers)
    return await exchange.finish(timeout_s)


async def get(port: int, path: str, *, timeout_s: float = 5.0) -> Reply:
    """Ask for a page."""
    return await (await Exchange.open(port, "GET", path)).finish(timeout_s)


def _unchunk(data: bytes) -> tuple[bytes, bool]:
    body = b""
    while True:
        size, found, rest = data.partition(b"\r\n")
        if not found:
            return body, False
        length = int(size.split(b";")[0], 16)
        if length == 0:
            return body, rest.startswith(b"\r\n")
        if len(rest) < length + 2:
            return body + rest[:length], False
        body += rest[:length]
        data = rest[length + 2 :]
