"""What one connection may do: heads bounded in size, number and time, and reading that goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.gateway.edge import ConnectionLimits, EdgeServer
from tests.unit.services.gateway.edge.test_server import connect, request, until
from tests.unit.services.gateway.rig import Rig, words

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

GET = b"GET /livez HTTP/1.1\r\nhost: x\r\n"


@asynccontextmanager
async def serving(rig: Rig, **limits: Any) -> AsyncIterator[EdgeServer]:
    """Run a server with limits of its own."""
    chosen = ConnectionLimits(**limits)
    server = EdgeServer(rig.post()._app, host="127.0.0.1", port=0, limits=chosen)
    running = asyncio.ensure_future(server.serve())
    try:
        yield server
    finally:
        await server.stop(1.0)
        await running


def error_of(answer: bytes) -> tuple[bytes, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head
    assert b"content-type: application/json" in head
    return head.split(b"\r\n")[0], json.loads(body)["error"]["code"]


@pytest.mark.parametrize(
    "head",
    [
        GET + b"x-long: " + b"a" * 5000 + b"\r\n\r\n",
        GET + b"x-endless: " + b"a" * 5000,
        b"GET /" + b"a" * 5000,
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        GET + b"".join(b"x-%d: 1\r\n" % n for n in range(30)) + b"\r\n",
        b"a" * 5000,
    ],
    ids=["header", "header without an end", "url without an end", "url", "many", "nonsense"],
)
async def test_large_heads_are_refused(rig: Rig, head: bytes):
    """A head over the limit, complete or not, is answered and ends the connection."""
    async with serving(rig, head_bytes=4096, headers=20) as server:
        reader, writer = await connect(server)
        writer.write(head)
        line, code = error_of(await reader.read())
        if head[:1] == b"a":
            assert (line, code) == (b"HTTP/1.1 400 Bad Request", "invalid_request")
        else:
            assert line.startswith(b"HTTP/1.1 431 ")
            assert code == "headers_too_large"
        writer.close()


async def test_heads_of_the_limit_are_read(rig: Rig):
    """Bodies count for nothing, and each request on a connection counts anew."""
    async with serving(rig, head_bytes=1024, headers=20) as server:
        reader, writer = await connect(server)
        for _ in range(5):
            writer.write(request().replace(b"\r\n\r\n", b"\r\nx-pad: " + b"a" * 800 + b"\r\n\r\n"))
            answer = await reader.readuntil(b"}}}")
            assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_slow_heads_are_refused(rig: Rig):
    """A head that trickles in is answered with a 408 when its time is over."""
    async with serving(rig, head_s=0.2) as server:
        reader, writer = await connect(server)
        writer.write(GET[:10])
        line, code = error_of(await reader.read())
        assert (line, code) == (b"HTTP/1.1 408 Request Timeout", "body_timeout")
        writer.close()


async def test_a_trickle_buys_no_time(rig: Rig):
    """A byte now and then does not keep a head alive."""
    async with serving(rig, head_s=0.3) as server:
        reader, writer = await connect(server)
        answer = asyncio.ensure_future(reader.read())
        sent = 0
        for byte in GET * 2:
            if answer.done():
                break
            writer.write(bytes([byte]))
            sent += 1
            await asyncio.sleep(0.02)
        assert sent < len(GET) * 2
        # A byte that crosses the answer may take it away.
        with contextlib.suppress(ConnectionResetError):
            assert error_of(await answer)[1] == "body_timeout"
        writer.close()


async def test_silent_connections_end(rig: Rig):
    """Who connects and says nothing gets no answer and loses the connection."""
    async with serving(rig, head_s=0.2) as server:
        reader, writer = await connect(server)
        assert await reader.read() == b""
        writer.close()


async def test_a_used_connection_may_rest(rig: Rig):
    """Between two requests the time for a head does not run; a slow second head is refused."""
    async with serving(rig, head_s=0.2) as server:
        reader, writer = await connect(server)
        for _ in range(2):
            writer.write(GET + b"\r\n")
            answer = await reader.readuntil(b"}")
            assert answer.startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.4)
        writer.write(GET)
        assert error_of(await reader.read())[1] == "body_timeout"
        writer.close()


async def test_a_whole_answer_that_nobody_reads_ends(rig: Rig):
    """A client that takes nothing of a large answer is cut, and its request forgotten."""
    rig.calls.script = words("x" * 30_000_000)
    async with serving(rig, unread_s=0.3) as server:
        _, writer = await connect(server)
        writer.transport.pause_reading()
        writer.write(request())
        await until(lambda: rig.calls.lives)
        await until(lambda: not server._server.server_state.connections)
        await until(lambda: not server._server.server_state.tasks)
        writer.close()


async def test_processes_share_a_port(rig: Rig):
    """Servers that say so listen on one port; the kernel deals connections out."""
    app = rig.post()._app
    one = EdgeServer(app, host="127.0.0.1", port=0, shared=True)
    other = EdgeServer(app, host="127.0.0.1", port=one.port, shared=True)
    running = [asyncio.ensure_future(server.serve()) for server in (one, other)]
    for _ in range(64):
        reader, writer = await connect(one)
        writer.write(GET + b"connection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
    served = [server._server.server_state.total_requests for server in (one, other)]
    assert sum(served) == 64
    assert min(served) > 0
    for server in (one, other):
        await server.stop(1.0)
    await asyncio.gather(*running)
