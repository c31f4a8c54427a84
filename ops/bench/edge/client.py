"""A load generator that costs little: raw asyncio protocols that count events as bytes."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

__all__ = ["Answer", "Load", "Stream", "drive", "request_of"]

_EVENT = b"data: "
_LAST = b"\r\n0\r\n\r\n"
_PROMPT = "Explain in a few words what a message bus is, and why a serving system would use one."
_OK = 200


@dataclass(slots=True)
class Answer:
    """One streamed answer, as its client saw it; times in seconds on the monotonic clock."""

    began_s: float = 0.0
    first_s: float = 0.0
    """Arrival of the first event."""
    ended_s: float = 0.0
    events: int = 0
    reads: int = 0


@dataclass(slots=True)
class Load:
    """What came of one run."""

    answers: list[Answer] = field(default_factory=list[Answer])
    failures: list[str] = field(default_factory=list[str])
    took_s: float = 0.0

    @property
    def first_ms(self) -> list[float]:
        """Times to the first event."""
        return [(answer.first_s - answer.began_s) * 1000 for answer in self.answers]


class Stream(asyncio.Protocol):
    """A connection on which one answer after the other is asked for."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.head = b""
        """Of the newest answer, once it is complete."""
        self.transport: asyncio.Transport | None = None
        self._tail = b""
        self._in_head = True
        self._done: asyncio.Future[Answer] | None = None
        self._enough = asyncio.Event()
        self._wanted = 0

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride] - as TCP servers do
        self, transport: asyncio.Transport
    ) -> None:
        """Begin."""
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._fail(f"the connection ended: {exc}")

    def data_received(self, data: bytes) -> None:
        """Count what has come."""
        now_s = time.monotonic()
        if self._in_head:
            head, end, data = (self._tail + data).partition(b"\r\n\r\n")
            if not end:
                self._tail = head
                return
            self.head, self._tail, self._in_head = head, b"", False
            if int(head[9:12]) != _OK:
                self._fail((head + data)[:400].decode(errors="replace"))
                return
        answer = self.answer
        answer.reads += 1
        # The tail is shorter than what is looked for, so that nothing counts twice.
        joined = self._tail + data
        answer.events += joined.count(_EVENT) - self._tail.count(_EVENT)
        if answer.events and not answer.first_s:
            answer.first_s = now_s
        if answer.events >= self._wanted:
            self._enough.set()
        self._tail = joined[-len(_LAST) :]
        if self._tail.endswith(_LAST) and self._done is not None and not self._done.done():
            answer.ended_s = now_s
            self._done.set_result(answer)

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future gets its whole answer."""
        if self.transport is None:
            raise RuntimeError("not connected")
        self._done = asyncio.get_running_loop().create_future()
        self._in_head, self._tail, self.head = True, b"", b""
        self.answer = Answer(began_s=time.monotonic())
        self.transport.write(request)
        return self._done

    async def until(self, events: int) -> None:
        """Wait until so many events of the newest answer have come."""
        self._wanted = events
        self._enough.clear()
        if self.answer.events < events:
            await self._enough.wait()

    def _fail(self, why: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(why))


def request_of(port: int, model: str, tokens: int, number: int = 0) -> bytes:
    """Return the bytes of a request for a streamed answer of exactly so many tokens."""
    body = json.dumps(
        {
            "model": model,
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": f"{number} {_PROMPT}"}],
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        f"host: 127.0.0.1:{port}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def drive(port: int, model: str, *, streams: int, tokens: int, requests: int) -> Load:
    """Ask `requests` times over `streams` connections at once, each one answer at a time."""
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(Stream, "127.0.0.1", port) for _ in range(streams)]
    load, left = Load(), iter(range(requests))

    async def work(stream: Stream) -> None:
        for number in left:
            try:
                load.answers.append(await stream.ask(request_of(port, model, tokens, number)))
            except ConnectionError as error:
                load.failures.append(str(error))
                return

    began_s = time.monotonic()
    await asyncio.gather(*(work(stream) for _, stream in pairs))
    load.took_s = time.monotonic() - began_s
    for transport, _ in pairs:
        transport.close()
    return load
