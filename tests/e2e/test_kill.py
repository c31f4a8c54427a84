"""`kill -9` of one process with requests in flight: typed errors or right answers, never silence.

One stack lives through all the deaths, so each test also proves that the ones before it healed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from ops.cli.views.trace import complete
from proto.errors import ErrorCode
from proto.events import EventKind
from tests.support.http_client import Exchange, Reply, chat_body, post
from tests.support.stack import RunningStack, run_stack
from tests.support.witness import Witness, witness

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ANSWER_S = 5.0
"""Each request that was in flight must have ended within this time after the kill."""

AGAIN_S = 10.0
"""The restarted process must have been used within this time after the kill."""

PROOF_S = 30.0
"""All leases must be proved free within this time after the kill; a dead gateway takes longest."""

FAULTS = [
    {"when": "prefill", "action": "stall", "seconds": 0.6, "text": "slow prompt"},
    {"when": "transfer", "action": "stall", "seconds": 0.6, "text": "slow transfer"},
    {"when": "decode", "action": "slow", "seconds": 0.02, "text": "slow answer"},
]

TEXTS = ("slow prompt", "slow transfer", "slow answer")
TOKENS = 40


@dataclass(frozen=True, slots=True)
class Flight:
    """One request that is under way."""

    text: str
    stream: bool
    exchange: Exchange


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run two pairs that take their time in each stage."""
    script = json.dumps({"faults": FAULTS})
    env = {"PDBUS_PREFILL_SCRIPT": script, "PDBUS_DECODE_SCRIPT": script}
    place = tmp_path_factory.mktemp("stack")
    with run_stack(place, "--prefill=2", "--decode=2", env=env) as running:
        yield running


@pytest.fixture
async def seen(stack: RunningStack) -> AsyncIterator[Witness]:
    """Watch the bus, from a moment at which every process is ready and no lease is open."""
    stack.wait_ready(30)
    async with witness(stack.record.nats_url) as heard:
        await heard.until(lambda: len(heard.beats) >= 7 and not heard.leases(), 30, "quiet")
        yield heard


async def reference(stack: RunningStack) -> dict[str, str]:
    """Return the right answer to each question, from the undisturbed stack."""
    replies = await asyncio.gather(
        *(post(stack.port, chat_body(text, max_tokens=TOKENS)) for text in TEXTS)
    )
    assert all(reply.claims_completeness for reply in replies), replies
    return dict(zip(TEXTS, (reply.text for reply in replies), strict=True))


async def take_off(stack: RunningStack) -> list[Flight]:
    """Start requests that are in different stages when this returns."""
    flights: list[Flight] = []
    for text in TEXTS:
        for stream in (True, False, True):
            body = json.dumps(chat_body(text, max_tokens=TOKENS, stream=stream)).encode()
            exchange = await Exchange.open(stack.port, "POST", "/v1/chat/completions", body)
            flights.append(Flight(text, stream, exchange))
    await flights[-1].exchange.until(b'"content"')
    return flights


def check(flight: Flight, reply: Reply, right: str, victim: str) -> None:
    """Check that a reply is a right answer or a typed failure, and says which."""
    where = f"{flight.text!r} stream={flight.stream}: {reply}"
    if reply.claims_completeness:
        assert reply.text == right, where
        return
    if reply.error is not None:
        assert reply.error["code"] in set(ErrorCode), where
        assert reply.finish_reason is None, where
        assert reply.status >= 400 or reply.is_stream, where
        return
    # Only a connection that broke may end without words, and only a dead gateway breaks it.
    assert not reply.whole, where
    assert victim == "gateway-0", where


async def used_again(stack: RunningStack, seen: Witness, victim: str, until: float) -> None:
    """Send requests until one of them went through the new process."""
    instance = stack.slot(victim).instance
    since_ms = time.time() * 1000
    kinds = {
        "prefill-0": EventKind.STAGE_PREFILL,
        "decode-0": EventKind.STAGE_DECODE,
        "cleanup-0": EventKind.LEASE_FREED,
    }
    while True:
        replies = await asyncio.gather(
            *(post(stack.port, chat_body(f"again {n}", max_tokens=3)) for n in range(4))
        )
        answered = any(reply.claims_completeness for reply in replies)
        if victim not in kinds and answered:
            return
        await asyncio.sleep(0.1)
        for event in seen.events:
            by_it = event.instance == instance and event.kind is kinds.get(victim)
            if by_it and event.at_ms > since_ms and answered:
                return
        assert time.monotonic() < until, f"{victim} was not used again\n{seen.report()}"


async def proved_free(seen: Witness, rids: set[str], until: float) -> None:
    """Wait until every request has ended and each of its leases is proved free."""
    open_rids = set(rids)
    while open_rids:
        for rid in sorted(open_rids):
            if complete(await seen.bus.read_events(rid)):
                open_rids.discard(rid)
        assert time.monotonic() < until, f"not proved free:\n{seen.report(open_rids)}"
        await asyncio.sleep(0.2)
    await seen.until(lambda: not seen.leases(), max(1.0, until - time.monotonic()), "no lease")


@pytest.mark.parametrize(
    "victim", ["prefill-0", "decode-0", "router-0", "cleanup-0", "gateway-0", "nats-0"]
)
async def test_kill(stack: RunningStack, seen: Witness, victim: str) -> None:
    """NATS-05: answers or typed errors in 5 s, survivors untouched, the dead one back and used."""
    right = await reference(stack)
    flights = await take_off(stack)
    before = stack.pids()
    pid = stack.kill(victim)
    killed = time.monotonic()

    replies = await asyncio.gather(*(f.exchange.finish(ANSWER_S) for f in flights))
    for flight, reply in zip(flights, replies, strict=True):
        check(flight, reply, right[flight.text], victim)

    await asyncio.to_thread(stack.wait_replaced, victim, pid, AGAIN_S)
    await used_again(stack, seen, victim, killed + AGAIN_S)
    after = stack.pids()
    assert {n: p for n, p in after.items() if n != victim} == {
        n: p for n, p in before.items() if n != victim
    }
    rids = {str(e.rid) for e in seen.events if e.kind is EventKind.REQUEST_ACCEPTED}
    await proved_free(seen, rids, killed + PROOF_S)
