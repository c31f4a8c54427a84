"""The door: 401 and 429 before anything else happens, with all headers that a client needs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from libs.clock import SystemClock
from services.gateway.edge import Exchanges, exchange_of, send_json
from services.gateway.tenants import Directory, Door
from tests.unit.services.gateway.tenants.test_directory import KEY, OTHER, put

PATH = "/v1/chat/completions"


class Inside:
    """An app that tells who came in, and keeps them until it is told."""

    def __init__(self) -> None:
        self.tenants: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        self.tenants.append(exchange.visitor.tenant)
        await self.go.wait()
        await send_json(exchange, send, {})


class Answer:
    """What came back."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            self.body += message["body"]

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


async def house(path: Path | None) -> tuple[Any, Inside]:
    inside = Inside()
    clock = SystemClock()
    if path is None:
        return Exchanges(inside, clock=clock), inside
    directory = await asyncio.to_thread(Directory, path, clock=clock)
    door = Door(inside, directory=directory, routes={PATH: PATH})
    return Exchanges(door, clock=clock), inside


async def knock(
    app: Any, key: str | None = None, path: str = PATH, method: str = "POST", **headers: str
) -> Answer:
    answer = Answer()
    given = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    if key is not None:
        given.append((b"authorization", f"Bearer {key}".encode()))

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body is not looked at")

    scope = {"type": "http", "method": method, "path": path, "headers": given}
    await app(scope, receive, answer.take)
    return answer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    put(file)
    return file


async def test_nobody_comes_in_without_a_key(path: Path):
    """401 in OpenAI's shape, before the body is read, on paths that exist and on others."""
    app, inside = await house(path)
    for target in (PATH, "/v1/models", "/nowhere"):
        answer = await knock(app, path=target, x_request_id="mine")
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"] == "mine"
    assert inside.tenants == []


async def test_probes_need_no_key(path: Path):
    """Health, version and metrics are for machines that have none."""
    app, inside = await house(path)
    for target in ("/livez", "/readyz", "/health", "/version", "/metrics"):
        assert (await knock(app, path=target, method="GET")).status == 200
    assert len(inside.tenants) == 5


async def test_without_keys_everybody_comes_in():
    """A gateway without a key file knows one tenant."""
    app, inside = await house(None)
    assert (await knock(app)).status == 200
    assert (await knock(app, key="anything")).status == 200
    assert len(set(inside.tenants)) == 1


async def test_tenants_are_told_apart_and_limited(path: Path):
    """One tenant's limit is a 429 with all headers, and no matter for the other."""
    app, inside = await house(path)
    for left in ("1", "0"):
        answer = await knock(app, KEY)
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert answer.headers["x-ratelimit-remaining-requests"] == left
    answer = await knock(app, KEY)
    assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
    assert answer.error["type"] == "rate_limit_error"
    assert answer.headers["x-should-retry"] == "true"
    assert 28 <= int(answer.headers["retry-after"]) <= 30
    assert 28_000 <= int(answer.headers["retry-after-ms"]) <= 30_000
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.headers["x-ratelimit-reset-requests"].startswith(("59", "1m0"))
    assert (await knock(app, OTHER)).status == 200
    assert len(set(inside.tenants)) == 2


async def test_looking_is_not_counted(path: Path):
    """Lists of models cost nothing of the limit."""
    app, _ = await house(path)
    for _ in range(5):
        assert (await knock(app, KEY, "/v1/models", "GET")).status == 200
    assert (await knock(app, KEY)).headers["x-ratelimit-remaining-requests"] == "1"


async def test_who_leaves_gives_its_place_back(path: Path):
    """A place among the running requests is free again after an answer, and after a cancel."""
    await asyncio.to_thread(put, path, tenants={"acme": {"streams": 1}, "other": {}})
    app, inside = await house(path)
    inside.go.clear()
    first = asyncio.ensure_future(knock(app, KEY))
    while not inside.tenants:
        await asyncio.sleep(0)
    assert (await knock(app, KEY)).status == 429
    first.cancel()
    await asyncio.wait([first])
    inside.go.set()
    assert (await knock(app, KEY)).status == 200
    assert (await knock(app, KEY)).status == 200
