"""The public cases about the HTTP edge as proxies and scrapers see it: OPS-08, OBS-01, OBS-03.

One stack, whose gateway has four processes on one port.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import pytest

from ops.cli.stack.process import children_of
from tests.cases.adapter import body_of, faults
from tests.cases.edge.proxies import Place, connect, find_nginx, own_proxy, real_nginx
from tests.support.http_client import get
from tests.support.stack import RunningStack, run_stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
]

STEP_S = 0.05
TOKENS = 40
ASKED = 40
LATER_S = 0.3
"""How much later than without the proxy any event may come."""
METRIC = "pdbus_gateway_requests_total"


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory, words: Path) -> Iterator[RunningStack]:
    """A gateway of four processes in front of one pair of paced engines."""
    env = {"PDBUS_DECODE_SCRIPT": faults(step_s=STEP_S)}
    options = ("--workers=4", f"--model={words}")
    with run_stack(tmp_path_factory.mktemp("edge"), *options, env=env) as stack:
        _until_all_are_ready(stack.port)
        yield stack


def _until_all_are_ready(port: int) -> None:
    """Wait until each process is likely to have said so: a connection reaches any of them."""
    until, in_a_row = time.monotonic() + 30, 0
    while in_a_row < ASKED:
        assert time.monotonic() < until
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        line.request("GET", "/readyz")
        in_a_row = in_a_row + 1 if line.getresponse().status == HTTPStatus.OK else 0
        line.close()


# Proxies that buffer


@dataclass(slots=True)
class Arrivals:
    """What came of a stream, and when."""

    head: bytes = b""
    at_s: list[float] = field(default_factory=list[float])
    """Of each event."""
    reads: int = 0
    """How often something came that held an event."""


async def arrivals(place: Place, **headers: str) -> Arrivals:
    """Ask for a stream and note when each event comes."""
    found = Arrivals()
    body = json.dumps(body_of("how does it flow", TOKENS)).encode()
    more = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in headers.items())
    reader, writer = await connect(place)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + more.encode()
        + b"content-length: %d\r\n\r\n" % len(body)
        + body
    )
    found.head = await reader.readuntil(b"\r\n\r\n")
    tail = b""
    while b"[DONE]" not in tail:
        piece = await reader.read(65536)
        assert piece, tail
        events = (tail + piece).count(b"data: ") - tail.count(b"data: ")
        found.at_s += [time.monotonic()] * events
        found.reads += bool(events)
        tail = (tail + piece)[-64:]
    writer.close()
    return found


async def flows(edge: RunningStack, heeds: Place, deaf: Place, *, shows: bool) -> None:
    """Check what comes, and when, through a proxy that buffers, and one that heeds no wish.

    The first may show clients the wish about buffering, or keep it to itself.
    """
    straight, through, zipped, held = await asyncio.gather(
        arrivals(edge.port),
        arrivals(heeds),
        arrivals(heeds, accept_encoding="gzip"),
        arrivals(deaf),
    )
    for found in (straight, through, zipped):
        head = found.head.lower()
        assert b"\r\ncontent-type: text/event-stream; charset=utf-8\r\n" in head
        assert b"\r\ncache-control: no-cache\r\n" in head
        assert (b"\r\nx-accel-buffering: no\r\n" in head) == (shows or found is straight)
        assert b"\r\ncontent-length:" not in head
        assert b"\r\ncontent-encoding:" not in head
        # One event a token, and each was written alone: role and first token share a write, and
        # so do the finish and the end.
        assert len(found.at_s) == len(straight.at_s) >= TOKENS + 2
        assert found.reads >= TOKENS * 3 // 4
    for found in (through, zipped):
        late = [b - a for a, b in zip(straight.at_s, found.at_s, strict=True)]
        assert max(late) - min(late) <= LATER_S
    # The head may bring the first of them.
    assert held.at_s[2] - straight.at_s[2] > TOKENS * STEP_S / 4
    assert held.reads < TOKENS // 4


async def test_a_proxy_does_not_hold_a_stream_back(edge: RunningStack) -> None:
    """OPS-08: through a proxy that buffers as nginx does each event comes as it is written.

    The same proxy holds all back if it does not heed the header, so it is the header that does it.
    """
    async with own_proxy(edge.port) as (heeds, deaf):
        await flows(edge, heeds, deaf, shows=True)


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed; our own proxy stands in")
async def test_nginx_does_not_hold_a_stream_back(edge: RunningStack) -> None:
    """OPS-08: the same through the real nginx with its stock settings, buffering and gzip on."""
    async with real_nginx(edge.port) as (heeds, deaf):
        await flows(edge, heeds, deaf, shows=False)


# What scrapers see


async def scrape(port: int) -> str:
    """Return the metrics of all processes, as any of them gives them."""
    page = await get(port, "/metrics")
    assert page.status == 200
    return page.body.decode()


def series(text: str) -> int:
    """Return the number of time series."""
    return sum(not line.startswith("#") for line in text.splitlines())


def total(text: str, name: str = METRIC) -> float:
    """Return the sum over the labels of a metric."""
    lines = (line for line in text.splitlines() if line.startswith((name + "{", name + " ")))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def wander(port: int, count: int, seed: int) -> set[int]:
    """Ask for random paths on one connection; return the statuses that came."""
    chance, statuses = random.Random(seed), set[int]()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        word = "".join(chance.choices("abcdefghij%20-_.", k=chance.randint(1, 30)))
        path = chance.choice((f"/{word}", f"/v1/{word}", f"/v1/models/{word}", f"/livez/{word}"))
        query = chance.choice(("", f"?{word}=1"))
        method = chance.choice(("GET", "GET", "DELETE", "PUT", "PROPFIND"))
        writer.write(f"{method} {path}{query} HTTP/1.1\r\nhost: {word}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        statuses.add(int(head[9:12]))
        length = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length[1]) if length else 0)
    writer.close()
    return statuses


async def wandered(edge: RunningStack, count: int) -> None:
    """Check that the paths of strangers make no series."""
    before = await scrape(edge.port)
    # What exists once for each method and status is there from the first round.
    found = await asyncio.gather(*(wander(edge.port, 100, seed) for seed in range(8)))
    warm = await scrape(edge.port)
    found += await asyncio.gather(*(wander(edge.port, count // 8, 100 + s) for s in range(8)))
    after = await scrape(edge.port)
    assert set[int]().union(*found) == {404, 405}
    assert series(after) - series(warm) < 20
    assert len(after) < 1 << 20
    # Routes are labels only where they are ours.
    routes = set(re.findall(r'http_route="([^"]*)"', after)) - set(
        re.findall(r'http_route="([^"]*)"', before)
    )
    assert routes <= {"other", "/v1/models/{model}", "/livez", "/v1/models", "/metrics"}


async def test_strangers_paths_are_no_labels(edge: RunningStack) -> None:
    """OBS-01: thousands of random paths, methods and queries make fewer than twenty series."""
    await wandered(edge, 2000)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_very_many_strangers_paths_are_no_labels(edge: RunningStack) -> None:
    """OBS-01: the same with ten thousand."""
    await wandered(edge, 10_000)


async def ask_many(port: int, count: int) -> None:
    """Ask for answers of one token, each on a connection of its own."""
    body = json.dumps(body_of("count me", 1)).encode()
    room = asyncio.Semaphore(16)

    async def one() -> None:
        async with room:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            answer = await reader.read()
            assert b" 200 OK" in answer[:20]
            assert b"[DONE]" in answer
            writer.close()

    await asyncio.gather(*(one() for _ in range(count)))


async def settled(port: int, wanted: float) -> None:
    """Wait until an ended request is counted: that is a moment after its last byte."""
    async with asyncio.timeout(5.0):
        while total(await scrape(port)) < wanted:
            await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
async def test_all_processes_count_as_one(edge: RunningStack) -> None:
    """OBS-03: whichever process is scraped, the counts are those of all, exactly.

    They stand when one process is killed, and nothing of it runs on in the gauges.
    """
    before = total(await scrape(edge.port))
    await ask_many(edge.port, 200)
    await settled(edge.port, before + 200)
    texts = [await scrape(edge.port) for _ in range(20)]
    assert [total(text) for text in texts] == [before + 200] * 20
    parent = edge.pid("gateway-0")
    workers = children_of(parent)
    assert len(workers) == 4
    os.kill(workers[1], signal.SIGKILL)
    # Who connects to a process in the moment of its death is cut off.
    while workers[1] in children_of(parent):
        await asyncio.sleep(0.005)
    counts: list[float] = []
    for _ in range(20):
        text = await scrape(edge.port)
        counts.append(total(text))
        assert total(text, "pdbus_gateway_inflight_requests") == 0
        await asyncio.sleep(0.02)
    assert counts == [before + 200] * 20
    edge_ready = time.monotonic() + 20
    while len(children_of(parent)) < 4 or edge.pid("gateway-0") != parent:
        assert time.monotonic() < edge_ready
        await asyncio.sleep(0.1)
    await ask_many(edge.port, 40)
    await settled(edge.port, before + 240)
    assert total(await scrape(edge.port)) == before + 240
