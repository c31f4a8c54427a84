"""The health port, asked over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from libs.lifecycle import HealthServer, Readiness

Ask = Callable[[bytes], Awaitable[tuple[bytes, bytes]]]


class State:
    """What the server under test is told."""

    def __init__(self) -> None:
        self.readiness: Readiness = (False, "starting")


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
async def ask(state: State) -> AsyncIterator[Ask]:
    server = HealthServer(
        port=0, readiness=lambda: state.readiness, metrics=lambda: "engine_metric 1\n"
    )
    await server.start()

    async def exchange(request: bytes) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        return head, body

    yield exchange
    await server.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


async def test_livez_answers_while_the_service_starts(ask: Ask):
    """Liveness does not depend on readiness."""
    head, body = await ask(get("/livez"))
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert json.loads(body) == {"alive": True}


async def test_readyz_says_why_not(ask: Ask, state: State):
    """A service that is not ready answers 503 with its reason, else 200."""
    head, body = await ask(get("/readyz"))
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body) == {"ready": False, "reason": "starting"}
    state.readiness = (True, "")
    head, body = await ask(get("/readyz?verbose"))
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["ready"] is True


async def test_metrics_contain_ours_and_the_engines(ask: Ask):
    """A scrape gives this process' metrics, and passes those of an engine through."""
    head, body = await ask(get("/metrics"))
    assert b"text/plain; version=0.0.4" in head
    assert b"process_resident_memory_bytes" in body
    assert body.endswith(b"engine_metric 1\n")


async def test_a_head_request_has_no_body(ask: Ask):
    """HEAD answers with the length and nothing after it."""
    head, body = await ask(b"HEAD /livez HTTP/1.0\r\n\r\n")
    assert b"content-length: 14" in head
    assert body == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/other"), b"404"),
        (b"POST /livez HTTP/1.1\r\n\r\n", b"405"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\xff\xfe\r\n\r\n", b"400"),
    ],
)
async def test_other_requests_are_refused(ask: Ask, request_bytes: bytes, status: bytes):
    """What is not a probe or a scrape gets a plain refusal."""
    head, _ = await ask(request_bytes)
    assert head.split(b" ")[1] == status


async def test_a_head_without_end_is_cut(ask: Ask):
    """A client that sends more than a head may have is disconnected, and others are served."""
    head, _ = await ask(b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 20_000)
    assert head == b""
    head, _ = await ask(get("/livez"))
    assert b"200" in head


async def test_closing_frees_the_port(state: State):
    """After closing nobody listens any more."""
    server = HealthServer(port=0, readiness=lambda: state.readiness)
    await server.start()
    port = server.port
    await server.close()
    with pytest.raises(OSError, match=r".*"):
        await asyncio.open_connection("127.0.0.1", port)
