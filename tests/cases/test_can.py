"""CAN-*: clients that leave, and requests that are cancelled.

One pair of workers: a prefill that computes one prompt at a time, and 16 decode slots.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import nats
import psutil
import pytest

from proto.events import EventKind
from proto.ledger import RequestState
from proto.workers import Role
from tests.cases.adapter import (
    ANSWER_S,
    FREED_S,
    Processes,
    Product,
    Supervised,
    body_of,
    chunks,
    faults,
    hang_up_hard,
)
from tests.support.checked.sdk import sdk
from tests.support.http_client import Exchange
from tests.support.stack import run_stack
from tests.support.words import NAME

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="module"),
]

SLOTS = 16
CHUNK = 64
TOKEN_S = 0.0006
"""Time that prefill takes for a token."""
STEP_S = 0.03
"""Time that each token of a slow answer takes."""

PREFILL = faults(
    {"when": "prefill", "action": "stall", "text": "stall in prefill"},
    {"when": "transfer", "action": "stall", "text": "stall in transfer"},
    chunk_tokens=CHUNK,
    prefill_token_s=TOKEN_S,
)
DECODE = faults(
    {"when": "decode", "action": "stall", "text": "stall before decode"},
    {"when": "decode", "action": "slow", "seconds": STEP_S, "text": "slow answer"},
)

LONG = "long" * (21 * CHUNK // 4)
"""A prompt of more than twenty chunks: each letter is a token."""

CLIENT = """
import json, socket, sys
port, body = int(sys.argv[1]), sys.argv[2].encode()
link = socket.create_connection(("127.0.0.1", port))
head = "POST /v1/chat/completions HTTP/1.1\\r\\nhost: x\\r\\ncontent-type: application/json\\r\\n"
link.sendall(f"{head}content-length: {len(body)}\\r\\n\\r\\n".encode() + body)
got = b""
while got.count(b'"content"') < 5:
    got += link.recv(65536)
print("five", flush=True)
while link.recv(65536):
    pass
"""
"""A client that says when it has five chunks, and reads on."""


@pytest.fixture(scope="module")
def processes(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Run one pair."""
    env = {
        "PDBUS_PREFILL_SLOTS": "1",
        "PDBUS_DECODE_SLOTS": str(SLOTS),
        "PDBUS_PREFILL_SCRIPT": PREFILL,
        "PDBUS_DECODE_SCRIPT": DECODE,
    }
    place = tmp_path_factory.mktemp("stack")
    with run_stack(place, f"--model={words}", env=env) as stack:
        yield Supervised(stack)


async def outcomes(product: Product) -> dict[str, float]:
    """Return how many requests the gateway counts by outcome."""
    found: dict[str, float] = {}
    for name, labels, value in await product.samples("gateway-0"):
        if name == "pdbus_gateway_requests_total":
            found[labels["outcome"]] = found.get(labels["outcome"], 0) + value
    return found


async def check_cancelled(product: Product, rid: str, before: dict[str, float]) -> None:
    """Check all that a client who has just left must bring about."""
    await product.freed(FREED_S)
    generated = await product.total("decode", "pdbus_decode_tokens_total")
    await asyncio.sleep(10 * STEP_S)
    assert await product.total("decode", "pdbus_decode_tokens_total") == generated
    assert product.cancels() == [rid]
    assert await product.ended([rid]) == {RequestState.CANCELLED: 1}
    after = await outcomes(product)
    changed = {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}
    assert changed == {"client_gone": 1}
    assert (await product.ask("And now?", timeout_s=ANSWER_S)).claims_completeness


@pytest.mark.parametrize("way", ["reset", "half closed", "killed", "sdk"])
async def test_leaving_a_stream_frees_both_sides(product: Product, way: str) -> None:
    """CAN-01: RST, FIN, kill -9 of the client, or the SDK's close: one cancel, all free in 2 s."""
    before = await outcomes(product)
    if way == "killed":
        body = json.dumps(body_of("slow answer", 2000))
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, str(product.port), body),
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdout is not None
        assert await client.stdout.readline() == b"five\n"
        client.kill()
        await client.wait()
    elif way == "sdk":
        async with sdk(product.port) as client:
            stream = await client.chat.completions.create(
                model=NAME,
                messages=[{"role": "user", "content": "slow answer"}],
                max_tokens=2000,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for _ in range(5):
                await anext(stream)
            await stream.close()
    else:
        exchange = await product.open("slow answer", 2000)
        await chunks(exchange, 5)
        if way == "reset":
            hang_up_hard(exchange)
        else:
            exchange._writer.write_eof()
    await check_cancelled(product, await product.newest(), before)


async def test_leaving_a_whole_answer_frees_both_sides(product: Product) -> None:
    """CAN-03: without a stream, leaving is noticed too, and the access log says 499."""
    before = await outcomes(product)
    exchange = await product.open(
        "slow answer", 2000, stream=False, headers={"x-request-id": "whole-1"}
    )
    rid = await product.newest()
    await product.seen.until(lambda: product.seen.of(rid, EventKind.REQUEST_STREAMING), 5)
    await asyncio.sleep(0.5)
    exchange.hang_up()
    await check_cancelled(product, rid, before)
    line = product.access()["whole-1"]
    assert (line["status"], line["outcome"]) == (499, "client_gone")


async def test_half_a_body_reaches_nobody(product: Product) -> None:
    """CAN-03: a client that leaves while it uploads its body causes no message on the bus."""
    heard: list[str] = []

    async def hear(message: nats.aio.msg.Msg) -> None:
        subject = message.subject
        late = product.is_old(subject.rpartition(".")[2])
        if not subject.startswith("pdbus.v1.heartbeat.") and not late:
            heard.append(subject)

    client = await nats.connect(product.processes.nats_url)
    try:
        for subject in ("pdbus.v1.>", "$KV.>"):
            await client.subscribe(subject, cb=hear)
        await client.flush()
        body = json.dumps(body_of("Hello " * 200)).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", product.port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.transport.abort()
        await asyncio.sleep(0.5)
        assert heard == []
        # The same listener hears a body that is complete.
        assert (await product.ask("Hello")).claims_completeness
        await asyncio.sleep(0.2)
        assert any(subject.endswith(".start") for subject in heard)
    finally:
        await client.close()
    del reader


async def test_dead_prompts_do_not_hold_up_a_living_one(product: Product) -> None:
    """CAN-02: ten long prompts are dropped in prefill; the next one does not wait behind them."""
    started = asyncio.get_running_loop().time()
    assert (await product.ask("How long when idle?", 1)).claims_completeness
    idle_s = asyncio.get_running_loop().time() - started
    moved = await product.total("decode", "pdbus_kv_transfers_total")
    await product.newest()
    known = product.accepted()
    dropped = await asyncio.gather(*(product.open(LONG, 8) for _ in range(10)))
    # Events come late on a busy machine, when the first prompt has been computed.
    async with asyncio.timeout(5):
        while await product.total("gateway", "pdbus_gateway_inflight_requests") < 10:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    for exchange in dropped:
        exchange.hang_up()
    began = asyncio.get_running_loop().time()
    exchange = await product.open("A short one", 4)
    await exchange.until(b'"content":" ', timeout_s=30)
    waited_s = asyncio.get_running_loop().time() - began
    assert (await exchange.finish()).claims_completeness
    # The ten would take twice as long, were they computed to their ends.
    assert waited_s < max(2.0, 3 * idle_s)
    await product.freed(FREED_S)
    await product.newest(len(known) + 11)
    rids = product.accepted() - known
    states = await product.ended(rids)
    assert states == {RequestState.CANCELLED: 10, RequestState.DONE: 1}
    cancelled = set(product.cancels())
    assert len(cancelled) == 10
    await product.seen.until(lambda: aborted(product, "src") >= cancelled, 5, "ten aborts")
    # Only the idle question's and the short one's KV were handed over.
    assert await product.total("decode", "pdbus_kv_transfers_total") - moved <= 2


def aborted(product: Product, side: str) -> set[str]:
    """Return the requests whose lease on one side has ended before its time."""
    return {
        str(e.rid)
        for e in product.seen.events
        if e.kind is EventKind.LEASE_ENDED and e.data["side"] == side
        if e.data["why"] != "finished"
    }


async def test_a_queue_that_leaves_leaves_nothing(product: Product) -> None:
    """CAN-05: requests that leave the queue can be sent again with their ids; nothing grows."""
    most = 2 * SLOTS
    rss: list[int] = []
    owners = [psutil.Process(product.processes.pid(n)) for n in ("gateway-0", "router-0")]
    for number in range(5):
        holders = [await product.open("slow answer", 400) for _ in range(SLOTS)]
        await asyncio.gather(*(holder.until(b'"content"') for holder in holders))
        names = [f"queued-{number}-{n}" for n in range(most)]
        queued = await asyncio.gather(
            *(product.open("Me too", headers={"x-request-id": name}) for name in names)
        )
        await queue_is(product, most)
        for exchange in queued:
            exchange.hang_up()
        await queue_is(product, 0)
        for holder in holders:
            holder.hang_up()
        again = await asyncio.gather(
            *(product.ask("Me too", headers={"x-request-id": name}) for name in names)
        )
        assert [r for r in again if not r.claims_completeness] == []
        assert [reply.rid for reply in again] == names
        rss.append(sum(owner.memory_info().rss for owner in owners))
    await product.at_rest()
    states = await product.ended()
    assert states == {RequestState.CANCELLED: 5 * (SLOTS + most), RequestState.DONE: 5 * most}
    assert rss[-1] - rss[2] < 5 << 20, [round(x / 2**20, 1) for x in rss]


async def queue_is(product: Product, length: int) -> None:
    """Wait until the queue has a length."""
    async with asyncio.timeout(FREED_S if not length else ANSWER_S):
        while await product.total("gateway", "pdbus_gateway_queued_requests") != length:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("seconds", "clients"),
    [(5.0, 40), pytest.param(60.0, 200, marks=[pytest.mark.slow, pytest.mark.timeout(180)])],
)
async def test_a_storm_of_leaving_clients(product: Product, seconds: float, clients: int) -> None:
    """CAN-06: many clients, a third leaves at any moment; after it all is at base, and counted."""
    before = await outcomes(product)
    dice = random.Random(6)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    left: dict[str, bool] = {}
    # Asking for what cannot be queued is refused, and is no part of this.
    room = asyncio.Semaphore(2 * SLOTS)

    async def client(number: int) -> None:
        turn = 0
        while loop.time() < until:
            turn += 1
            name = f"storm-{seconds:g}-{number}-{turn}"
            text = "word " * dice.choice([1, 10, 40])
            async with room:
                exchange = await product.open(
                    text,
                    dice.choice([2, 20, 100]),
                    stream=dice.random() < 0.7,
                    headers={"x-request-id": name},
                )
                if dice.random() < 0.3:
                    with contextlib.suppress(TimeoutError):
                        await exchange.finish(dice.random() * 1.5)
                    left[name] = not exchange.reply.claims_completeness
                else:
                    reply = await exchange.finish(30)
                    assert reply.claims_completeness, reply
                    left[name] = False

    await asyncio.gather(*(client(number) for number in range(clients)))
    await product.at_rest(10)
    states = await product.ended()
    print(f"{len(left)} requests, {sum(left.values())} left, {dict(states)}")
    assert states[RequestState.FAILED] == 0
    lines = product.access()
    gone = {name for name in left if lines[name]["outcome"] == "client_gone"}
    assert {name for name in left if lines[name]["outcome"] == "ok"} == set(left) - gone
    assert gone <= {name for name, away in left.items() if away}
    counted = (await outcomes(product)).get("client_gone", 0) - before.get("client_gone", 0)
    assert counted == len(gone)
    # Who left is cancelled, unless it left before it was accepted, or after the last token.
    cancelled = {str(e.rid) for e in product.seen.events if e.kind is EventKind.REQUEST_CANCELLED}
    assert cancelled <= {lines[name]["request_id"] for name in gone}
    assert len(cancelled) == states[RequestState.CANCELLED]
    assert len(cancelled) > len(left) / 10
    assert (await product.ask("All quiet?", timeout_s=ANSWER_S)).claims_completeness


async def in_queue(product: Product) -> Exchange:
    """Fill all slots for a while, and return a request that waits for one."""
    holders = [await product.open("slow answer", 40) for _ in range(SLOTS)]
    await asyncio.gather(*(holder.until(b'"content"') for holder in holders))
    exchange = await product.open("In the queue")
    await queue_is(product, 1)
    return exchange


async def in_prefill(product: Product) -> Exchange:
    """Return a request whose prompt is being computed."""
    exchange = await product.open("stall in prefill")
    await product.seen.until(lambda: product.seen.kv_used(Role.PREFILL), 5, "KV in prefill")
    return exchange


async def in_transfer(product: Product) -> Exchange:
    """Return a request whose KV is on its way."""
    exchange = await product.open("stall in transfer")
    seen = product.seen
    await seen.until(lambda: seen.kv_used(Role.PREFILL) and seen.kv_used(Role.DECODE), 5, "both")
    return exchange


async def before_decode(product: Product) -> Exchange:
    """Return a request whose KV has arrived, and that waits for its first step in decode."""
    exchange = await product.open("stall before decode")
    await exchange.until(b'"content":" ')
    return exchange


async def in_decode(product: Product) -> Exchange:
    """Return a request in the middle of its answer."""
    exchange = await product.open("slow answer", 400)
    await exchange.until(b'"content":" ')
    return exchange


async def at_its_end(product: Product) -> Exchange:
    """Return a request whose last chunk has just come."""
    exchange = await product.open("At its end")
    await exchange.until(b'"finish_reason":"length"')
    return exchange


@pytest.mark.parametrize(
    "phase", [in_queue, in_prefill, in_transfer, before_decode, in_decode, at_its_end]
)
async def test_one_cancel_in_each_phase(product: Product, phase) -> None:
    """CAN-08: after one cancel in any phase the pair is in step: three requests are answered."""
    exchange = await phase(product)
    rid = await product.newest(SLOTS + 1 if phase is in_queue else 1)
    exchange.hang_up()
    for number in range(3):
        reply = await product.ask(f"Number {number}", timeout_s=ANSWER_S)
        assert reply.claims_completeness, reply
    states = await product.ended([rid])
    right = RequestState.DONE if phase is at_its_end else RequestState.CANCELLED
    assert states in ({right: 1}, {RequestState.CANCELLED: 1})
