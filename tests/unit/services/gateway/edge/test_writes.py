"""Writes that need not wait: into the answer's own body, in order with all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from libs.clock import SystemClock
from proto.errors import PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.output import Details
from services.gateway.api import Delta
from services.gateway.edge import BODY, EdgeServer, EventStream, Exchange
from services.gateway.edge.connection import Body
from tests.unit.services.gateway.edge.test_server import connect, request, serving, until
from tests.unit.services.gateway.rig import Rig, deltas

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": []}


def part(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[EdgeServer]:
    """Run a server over one function."""
    server = EdgeServer(app, host="127.0.0.1", port=0)
    running = asyncio.ensure_future(server.serve())
    try:
        yield server
    finally:
        await server.stop(1.0)
        await running


async def body_of(reader: asyncio.StreamReader) -> bytes:
    """Return the whole body of the next chunked answer."""
    await reader.readuntil(b"\r\n\r\n")
    whole = b""
    while True:
        size = int(await reader.readline(), 16)
        piece = await reader.readexactly(size + 2)
        if not size:
            return whole
        whole += piece[:-2]


async def test_writes_of_both_kinds_stay_in_order():
    """What is written at once and what is sent follow each other; free from head to end."""
    states: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body: Body = scope[BODY]
        states.append(body.free)
        await send(START)
        states.append(body.free)
        body.write(b"one ")
        await send(part(b"two "))
        body.write(b"three")
        await send(part(b"", more=False))
        states.append(body.free)

    async with served(app) as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(GET)
            assert await body_of(reader) == b"one two three"
        writer.close()
    assert states == [False, True, False] * 2


async def test_the_next_request_does_not_mix_in():
    """A request that is sent behind another writes nothing before that one's answer has ended."""
    free: dict[bytes, list[bool]] = {}
    bodies: dict[bytes, Body] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"][1:].encode()
        bodies[name] = scope[BODY]
        await send(START)
        for _ in range(3):
            free.setdefault(name, []).extend(body.free for body in bodies.values())
            bodies[name].write(name)
            await asyncio.sleep(0)
        await send(part(b"", more=False))

    async with served(app) as server:
        reader, writer = await connect(server)
        writer.write(GET.replace(b"/ ", b"/a ") + GET.replace(b"/ ", b"/b "))
        assert [await body_of(reader), await body_of(reader)] == [b"aaa", b"bbb"]
        writer.close()
    assert free == {b"a": [True] * 3, b"b": [False, True] * 3}


async def test_a_full_connection_is_not_free():
    """A client that takes nothing stops these writes; when it reads, all has arrived in order."""
    full = asyncio.Event()
    count = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal count
        body: Body = scope[BODY]
        await send(START)
        while body.free:
            body.write(b"%08d" % count * 1000)
            count += 1
            await asyncio.sleep(0)
        full.set()
        await send(part(b"end", more=False))

    async with served(app) as server:
        reader, writer = await connect(server)
        writer.transport.pause_reading()
        writer.write(GET)
        await full.wait()
        writer.transport.resume_reading()
        expected = b"".join(b"%08d" % number * 1000 for number in range(count))
        assert await body_of(reader) == expected + b"end"
        writer.close()


async def test_a_client_that_has_left_is_not_free():
    """After a disconnect nothing is written."""
    bodies: list[Body] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bodies.append(scope[BODY])
        assert not bodies[0].write(b"early")
        await send(START)
        while (await receive())["type"] != "http.disconnect":
            pass

    async with served(app) as server:
        _, writer = await connect(server)
        writer.write(GET)
        await until(lambda: bodies and bodies[0].free)
        writer.transport.abort()
        await until(lambda: not bodies[0].free)
        assert not bodies[0].write(b"late")


async def test_the_direct_way_is_open_once_the_head_is_out(rig: Rig):
    """No event overtakes the head, the opening, or a write that waits for the client."""
    sent: list[Any] = []
    gate = asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body") == b"slow":
            await gate.wait()
        sent.append(message.get("body", b"head"))

    class Free:
        free = True

        def write(self, data: bytes) -> None:
            sent.append(data)

    body: Any = Free()
    exchange = Exchange(rid="r", request_id="r", started_s=0.0)  # type: ignore[arg-type]
    events = EventStream(
        exchange, send, clock=SystemClock(), body=body, opening=lambda: b"open ", headers=list
    )
    assert events.direct is None
    await events.write(b"first")
    assert events.direct is body
    events.direct.write(b"second")
    slow = asyncio.ensure_future(events.write(b"slow"))
    await asyncio.sleep(0)
    assert events.direct is None
    gate.set()
    await slow
    assert events.direct is body
    await events.close(b"")
    assert events.direct is None
    assert sent == [b"head", b"open first", b"second", b"slow", b""]


@pytest.mark.parametrize("choices", [1, 3])
async def test_plain_text_is_written_where_it_arrives(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, choices: int
):
    """All texts but the first reach a client that keeps up by way of its connection's body."""
    written: list[bytes] = []
    write = Body.write

    def spy(self: Body, data: bytes) -> bool:
        written.append(data)
        return write(self, data)

    async def script(live: Any) -> Any:
        for text in ("one", " two", " three", " four"):
            await asyncio.sleep(0.01)
            yield Delta(b"\0\0\0\0", text)
        usage = Usage(prompt_tokens=live.call.prompt_tokens, completion_tokens=4)
        yield Delta(b"", "", FinishReason.STOP, usage)

    monkeypatch.setattr(Body, "write", spy)
    rig.calls.script = script
    async with serving(rig) as server:
        reader, writer = await connect(server)
        writer.write(request(stream=True, n=choices))
        answer = await body_of(reader)
        writer.close()
    assert answer.count(b'"content":" three"') == choices
    assert sum(b" three" in data for data in written) == choices
    places = [answer.index(b'"content":"%s"' % text) for text in (b"one", b" two", b" four")]
    assert places == sorted(places)
    assert answer.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("close", [True, False])
async def test_the_first_text_brings_the_head(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, close: bool
):
    """Head, opening and first text are one write where they arrive; not so on a last answer."""
    begun: list[bytes] = []
    begin = Body.begin

    def spy(self: Body, headers: Any, data: bytes) -> None:
        begun.append(data)
        begin(self, headers, data)

    async def script(live: Any) -> Any:
        await asyncio.sleep(0.01)
        yield Delta(b"\0\0\0\0", "one")
        usage = Usage(prompt_tokens=live.call.prompt_tokens, completion_tokens=1)
        yield Delta(b"", "", FinishReason.STOP, usage)

    monkeypatch.setattr(Body, "begin", spy)
    rig.calls.script = script
    async with serving(rig) as server:
        reader, writer = await connect(server)
        asked = request(stream=True)
        if close:
            asked = asked.replace(b"host: x", b"host: x\r\nconnection: close")
        writer.write(asked)
        head = await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    assert len(begun) == (not close)
    assert (b"connection: close" in head) == close
    for line in (b"x-request-id: ", b"x-pdbus-decode: decode-1", b"transfer-encoding: chunked"):
        assert line in head
    assert answer.index(b'"role":"assistant"') < answer.index(b'"content":"one"')


async def test_a_head_holds_nothing_but_its_lines():
    """A header with a line break in it is not sent: it could end the head, or feign another."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body: Body = scope[BODY]
        for broken in (b"a\r\nx-y: b", b"a\nb", b"a\x00"):
            with pytest.raises(PdbusError):
                body.begin([(b"x-z", broken)], b"first")
        assert body.fresh
        body.begin([(b"x-z", b"sound")], b"first")
        assert not body.fresh
        await send(part(b"", more=False))

    async with served(app) as server:
        reader, writer = await connect(server)
        writer.write(GET.replace(b"GET", b"POST").replace(b"x\r\n", b"x\r\ncontent-length: 0\r\n"))
        assert await body_of(reader) == b"first"
        writer.close()


async def test_details_and_ends_take_the_long_way(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    """What is no plain text is framed by the task that owns the answer."""
    monkeypatch.setattr(Body, "write", lambda *_: pytest.fail("written at once"))
    rig.calls.script = deltas(
        Delta(b"\0\0\0\0", "Hello"), Delta(b"\0\0\0\0", "", details=Details(reasoning="Hm."))
    )
    async with serving(rig) as server:
        reader, writer = await connect(server)
        writer.write(request(stream=True))
        assert b"Hm." in await body_of(reader)
        writer.close()
