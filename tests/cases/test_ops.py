"""OPS-*: starts in any order, and ports that are taken. No supervisor heals anything here.

OPS-03 (drain, rolling restarts) is in tests/e2e/test_drain.py.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from libs.bus.testing import NatsServer
from proto.workers import Role
from tests.cases.adapter import ask, open_product
from tests.cases.loose import PAIR, LooseStack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

READY_S = 30.0
"""Everything is ready so long after the last thing that it needs."""

PAIRED = ("prefill", "decode")
STREAMS = {"PDBUS_EVENTS", "KV_PDBUS_REQUESTS", "KV_PDBUS_RESULTS"}


@contextmanager
def loose(folder: Path, model: Path, *, jetstream: bool = True) -> Iterator[LooseStack]:
    """Prepare a server and a stack, and start neither; all ends with the context."""
    (folder / "nats").mkdir(parents=True)
    server = NatsServer(folder / "nats", jetstream=jetstream)
    stack = LooseStack(folder, server, model)
    try:
        yield stack
    finally:
        try:
            stack.stop()
        finally:
            server.stop()


async def configs(url: str) -> dict[str, Any]:
    """Return the settings of all streams of a server."""
    client = await nats.connect(url)
    try:
        found = await client.jetstream().streams_info()
        return {info.config.name or "": info.config for info in found}
    finally:
        await client.close()


@pytest.mark.parametrize(
    "rounds", [1, pytest.param(12, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
async def test_any_order_of_starts(words: Path, tmp_path: Path, rounds: int) -> None:
    """OPS-04: two of each service in a random order, the broker last, on an empty disk.

    All get ready without a restart, and make the streams once, always with the same settings.
    """
    dice = random.Random(4)
    before: dict[str, Any] = {}
    for number in range(rounds):
        with loose(tmp_path / str(number), words) as stack:
            names = [f"{name[:-1]}{n}" for name in PAIR for n in range(2)]
            dice.shuffle(names)
            for name in names:
                stack.start(name)
                await asyncio.sleep(dice.random() * 0.2)
            await asyncio.sleep(3)
            # None has given up, and none says that it is ready.
            assert sorted(stack.names) == sorted(names)
            assert all([await stack.why_not(name) for name in names])
            await stack.server.start()
            spent = await stack.ready(*names, within_s=READY_S)
            print(f"{names}: ready {spent:.1f} s after the broker")
            for gateway in ("gateway-0", "gateway-1"):
                # The last of the streams is made for the first answer that is kept.
                key = {"idempotency-key": f"key-{gateway}"}
                reply = await ask(stack.gateway_port(gateway), "Hello", headers=key)
                assert reply.claims_completeness, reply
            made = await configs(stack.nats_url)
            assert set(made) == STREAMS
            assert made == (before or made)
            before = made


async def test_a_broker_whose_store_comes_late(words: Path, tmp_path: Path) -> None:
    """OPS-04: the broker listens, and JetStream is not there yet: services wait, and heal."""
    with loose(tmp_path, words, jetstream=False) as stack:
        server = stack.server
        await server.start()
        for name in PAIR:
            stack.start(name)
        async with asyncio.timeout(READY_S):
            while "no request has gone" not in await stack.why_not("gateway-0"):
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        assert await stack.why_not("gateway-0")
        await asyncio.to_thread(server.kill)
        server._jetstream = True
        await server.start()
        await stack.ready(*PAIR, within_s=READY_S)
        assert sorted(stack.names) == sorted(PAIR)
        assert (await ask(stack.port, "Hello")).claims_completeness
        assert set(await configs(stack.nats_url)) >= STREAMS - {"KV_PDBUS_RESULTS"}


async def test_many_workers_on_one_host(words: Path, tmp_path: Path) -> None:
    """OPS-05: four workers start at once with default settings: all ready, each at its own address.

    Each is used, so the addresses that are announced are those that it listens on.
    """
    workers = [f"{role}-{n}" for role in PAIRED for n in range(2)]
    with loose(tmp_path, words) as stack:
        await stack.server.start()
        for name in ("router-0", "gateway-0", "cleanup-0", *workers):
            stack.start(name)
        await stack.ready(within_s=READY_S)
        assert len({stack.health_port(name) for name in workers}) == len(workers)
        async with open_product(stack) as product:
            beats = [
                b for b in product.seen.beats.values() if b.role in {Role.PREFILL, Role.DECODE}
            ]
            doors = [door for b in beats if b.address for door in b.address.workers.values()]
            assert len(beats) == len(workers)
            assert len(doors) == len(set(doors)) >= len(workers)
            used: set[str] = set()
            async with asyncio.timeout(30):
                while used != set(workers):
                    replies = await asyncio.gather(*(product.ask("Hello", 2) for _ in range(4)))
                    assert [reply for reply in replies if not reply.claims_completeness] == []
                    used |= {r.headers[f"x-pdbus-{role}"] for r in replies for role in PAIRED}


@pytest.mark.parametrize(
    ("name", "setting"),
    [("gateway-0", "--port"), ("gateway-0", "--health-port"), ("decode-0", "--health-port")],
)
async def test_a_port_that_is_taken_is_named(
    words: Path, tmp_path: Path, name: str, setting: str
) -> None:
    """OPS-05: a service whose port is taken ends at once, and names the port and the setting."""
    with loose(tmp_path, words) as stack, socket.create_server(("127.0.0.1", 0)) as taken:
        await stack.server.start()
        port = taken.getsockname()[1]
        stack.start(name, setting, str(port))
        assert await stack.end(name, 10) != 0
        last = stack.log(name).splitlines()[-1]
        assert "cannot start" in last
        assert f"{setting} {port} " in last
