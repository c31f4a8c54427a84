"""The real HTTP server on a loopback socket: how it writes, ends, and notices that clients left."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proto.errors import ErrorCode, PdbusError
from services.gateway.edge import EdgeServer
from tests.unit.services.gateway.rig import CHAT, Rig, chat_body, rules, then_fail, then_hang, words

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@asynccontextmanager
async def serving(rig: Rig, grace_s: float = 1.0) -> AsyncIterator[EdgeServer]:
    """Run a server over the rig for a while."""
    server = EdgeServer(rig.post()._app, host="127.0.0.1", port=0)
    running = asyncio.ensure_future(server.serve())
    try:
        yield server
    finally:
        await server.stop(grace_s)
        await running


def request(**fields: object) -> bytes:
    body = json.dumps(chat_body(**fields)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connect(server: EdgeServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def until(true, within_s: float = 3.0) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


async def test_a_stream_over_a_socket(rig: Rig):
    """Chunked framing ends cleanly, and the connection is kept for the next request."""
    async with serving(rig) as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(request(stream=True))
            answer = await reader.readuntil(b"0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"transfer-encoding: chunked" in answer
            assert b"data: [DONE]" in answer
        writer.close()


async def test_sockets_send_at_once(rig: Rig):
    """Accepted connections have TCP_NODELAY."""
    async with serving(rig) as server:
        reader, writer = await connect(server)
        writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        (connection,) = server._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["reset", "close", "half"])
async def test_a_client_that_leaves_is_noticed(rig: Rig, stream: bool, how: str):
    """Reset, close and half-close all cancel the call, with and without stream."""
    rig.calls.script = then_hang("Hello")
    async with serving(rig) as server:
        reader, writer = await connect(server)
        writer.write(request(stream=stream))
        await until(lambda: rig.calls.lives and rig.calls.lives[0].hanging.is_set())
        if stream:
            await reader.readuntil(b"Hello")
        if how == "reset":
            writer.transport.abort()
        elif how == "close":
            writer.close()
        else:
            writer.write_eof()
        await until(lambda: rig.calls.lives[0].cancels, within_s=1.0)
        assert rig.calls.lives[0].cancels == ["client_gone"]
        writer.close()


async def test_a_failed_stream_ends_cleanly(rig: Rig):
    """After the error event the chunked body is complete: no client sees a broken read."""
    rig.calls.script = then_fail(PdbusError(ErrorCode.DECODE_LOST), "Hello")
    async with serving(rig) as server:
        reader, writer = await connect(server)
        writer.write(request(stream=True))
        answer = await reader.readuntil(b"0\r\n\r\n")
        assert answer.count(b"data: ") == 3
        assert b'"code":"decode_lost"' in answer
        assert b"[DONE]" not in answer
        writer.close()


async def test_unreadable_requests_have_the_one_shape(rig: Rig):
    """What is no HTTP gets our JSON error, and the connection ends."""
    async with serving(rig) as server:
        reader, writer = await connect(server)
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"
        writer.close()


async def test_stopping_lets_answers_end(rig: Rig):
    """A stop within the grace lets a running answer come to its end."""
    gate = asyncio.Event()

    async def slowly(live):
        await gate.wait()
        async for delta in words("late", " answer")(live):
            yield delta

    rig.calls.script = slowly
    async with serving(rig, grace_s=5.0) as server:
        reader, writer = await connect(server)
        writer.write(request())
        await until(lambda: rig.calls.lives)
        stopping = asyncio.ensure_future(server.stop(5.0))
        await asyncio.sleep(0.05)
        gate.set()
        assert b"late answer" in await reader.read()
        await stopping
        writer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_stopping_tells_those_it_cuts(rig: Rig, stream: bool):
    """An answer that outlives the grace ends with a typed error, never in silence."""
    rig.calls.script = then_hang("Hello")
    async with serving(rig, grace_s=1.0) as server:
        reader, writer = await connect(server)
        writer.write(request(stream=stream))
        await until(lambda: rig.calls.lives and rig.calls.lives[0].hanging.is_set())
        stopping = asyncio.ensure_future(server.stop(1.0))
        answer = await reader.read()
        assert b'"code":"draining"' in answer
        assert answer.startswith(b"HTTP/1.1 200" if stream else b"HTTP/1.1 503")
        await stopping
        assert len(rig.calls.lives[0].cancels) == 1
        writer.close()


async def test_a_client_that_stops_reading_loses_its_connection(rig: Rig):
    """A stalled reader is cut, its call given up, and others go on meanwhile."""
    rig.rules = rules(slow_client_s=0.3)

    async def flood(live):
        async for delta in words(*(["x" * 50_000] * 400))(live):
            await asyncio.sleep(0)
            yield delta

    rig.calls.script = flood
    async with serving(rig) as server:
        _, writer = await connect(server)
        writer.transport.pause_reading()
        writer.write(request(stream=True))
        await until(lambda: rig.calls.lives)
        reader, other = await connect(server)
        other.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await until(lambda: rig.calls.lives[0].cancels)
        assert rig.calls.lives[0].cancels == ["slow_client"]
        other.close()
        await until(lambda: not server._server.server_state.connections)
        writer.close()


def test_a_taken_port_is_an_error_at_once(rig: Rig):
    """Two servers on one port: the second fails where it is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        EdgeServer(rig.post()._app, host="127.0.0.1", port=taken.getsockname()[1])
