"""Idempotency keys over HTTP: join, replay, refuse, resume; each prompt is computed once.

Two gateways share the keys. Whether work was done twice is read off the counter of prefilled
tokens of the only prefill worker.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.bus import BucketSpec
from proto.events import EventKind
from proto.ledger import RequestRecord, RequestState
from proto.subjects import BUCKET_REQUESTS
from tests.support.http_client import Exchange, Reply, chat_body, get, post
from tests.support.stack import RunningStack, run_stack
from tests.support.witness import Witness, witness
from tests.support.words import NAME, Oracle, write_words

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

ATTACH_S = 10.0
"""How long a request with a key runs on without a reader."""

STEP_S = 0.02
"""Time that each token of a slow answer takes."""

DECODE_FAULTS = [
    {"when": "decode", "action": "slow", "seconds": STEP_S, "text": "slow answer"},
    {"when": "decode", "action": "slow", "seconds": 0.1, "text": "endless answer"},
]
PREFILL_FAULTS = [{"when": "prefill", "action": "error", "text": "prefill fails"}]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers are plain words."""
    return write_words(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair of workers behind two gateways."""
    env = {
        "PDBUS_PREFILL_SCRIPT": json.dumps({"faults": PREFILL_FAULTS}),
        "PDBUS_DECODE_SCRIPT": json.dumps({"faults": DECODE_FAULTS}),
    }
    place = tmp_path_factory.mktemp("stack")
    with run_stack(place, f"--model={folder}", "--gateways=2", env=env) as running:
        yield running


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    """What the right answers are."""
    return Oracle.load(folder)


def ports(stack: RunningStack) -> list[int]:
    """Return the ports of both gateways."""
    return [int(url.rpartition(":")[2]) for url in stack.record.urls]


def new_key() -> dict[str, str]:
    """Return the header with a key that was never used."""
    return {"idempotency-key": f"key-{secrets.token_hex(8)}"}


def body_of(text: str, tokens: int = 60, *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """Return a body whose answer has exactly so many tokens."""
    body = chat_body(text, model=NAME, max_tokens=tokens, ignore_eos=True, stream=stream, **fields)
    return body | {"stream_options": {"include_usage": True}} if stream else body


async def send(port: int, body: dict[str, Any], key: dict[str, str]) -> Exchange:
    """Send a request and leave the connection open."""
    data = json.dumps(body).encode()
    return await Exchange.open(port, "POST", "/v1/chat/completions", data, headers=key)


async def prefilled(stack: RunningStack) -> float:
    """Return how many prompt tokens the prefill worker has computed in its life."""
    page = await get(stack.slot("prefill-0").health_port, "/metrics")
    lines = page.body.decode().splitlines()
    found = [line for line in lines if line.startswith("pdbus_prefill_tokens_total")]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def same_answer(first: Reply, other: Reply) -> None:
    """Check that two replies are one answer: text, ids, time, usage, finish."""
    assert first.claims_completeness, first
    assert other.claims_completeness, other
    assert other.text == first.text
    assert other.finish_reason == first.finish_reason
    assert identity(other) == identity(first)
    assert other.rid == first.rid


def identity(reply: Reply) -> tuple[set[str], set[int], Any]:
    """Return the ids, the times and the usage that an answer names."""
    parts = [e for e in reply.events if isinstance(e, dict)] if reply.is_stream else [reply.json]
    usages = [part["usage"] for part in parts if part.get("usage")]
    return {part["id"] for part in parts}, {part["created"] for part in parts}, usages


@pytest.mark.parametrize("other", [0, 1])
async def test_the_same_key_joins_the_running_stream(
    stack: RunningStack, oracle: Oracle, other: int
) -> None:
    """Sent again while it runs, here or at the other gateway, it streams from the first token."""
    gateways, key, body = ports(stack), new_key(), body_of("slow answer, please")
    before = await prefilled(stack)
    first = await send(gateways[0], body, key)
    await first.until(
        oracle.say(oracle.answer(oracle.prompt("slow answer, please"), 20)[19:]).encode()
    )
    second = await send(gateways[other], body, key)
    replies = await asyncio.gather(first.finish(), second.finish())
    same_answer(*replies)
    prompt = oracle.prompt("slow answer, please")
    assert replies[0].text == oracle.say(oracle.answer(prompt, 60))
    assert await prefilled(stack) - before == len(prompt)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_finished_answer_is_replayed(
    stack: RunningStack, oracle: Oracle, stream: bool
) -> None:
    """Sent again after its end, at either gateway, it gives the same answer without any work."""
    key, body = new_key(), body_of("What is kept?", 12, stream=stream)
    first = await post(ports(stack)[0], body, headers=key)
    before = await prefilled(stack)
    for port in ports(stack):
        same_answer(first, await post(port, body, headers=key))
    assert await prefilled(stack) == before
    assert first.text == oracle.say(oracle.answer(oracle.prompt("What is kept?"), 12))


async def test_many_at_once_are_one_execution(stack: RunningStack, oracle: Oracle) -> None:
    """Eight requests of one key at the same moment, spread over both gateways, run once."""
    key, body = new_key(), body_of("Who is first?", 16)
    before = await prefilled(stack)
    asked = [post(port, body, headers=key) for port in ports(stack) * 4]
    first, *others = await asyncio.gather(*asked)
    for reply in others:
        same_answer(first, reply)
    assert await prefilled(stack) - before == len(oracle.prompt("Who is first?"))


async def test_another_body_is_refused(stack: RunningStack) -> None:
    """A key that stands for another body gives 422, while that runs and after its end."""
    gateways, key = ports(stack), new_key()
    running = await send(gateways[0], body_of("slow answer"), key)
    await running.until(b'"content":" ')
    for _ in range(2):
        for port in gateways:
            refused = await post(port, body_of("slow answer", 61), headers=key)
            assert (refused.status, refused.json["error"]["code"]) == (
                422,
                "idempotency_key_reused",
            )
        await running.finish()
    assert running.reply.claims_completeness


async def test_the_order_of_fields_is_no_other_body(stack: RunningStack) -> None:
    """The same fields in another order, written with other spaces, are the same request."""
    key, body = new_key(), body_of("In which order?", 8)
    first = await post(stack.port, body, headers=key)
    turned = json.dumps(dict(reversed(body.items())), indent=2).encode()
    same_answer(first, await post(stack.port, turned, headers=key))


async def test_a_cancelled_request_stays_cancelled(stack: RunningStack) -> None:
    """After an operator's cancel the key gives 409 at both gateways."""
    key, body = new_key(), body_of("slow answer", 400)
    running = await send(stack.port, body, key)
    await running.until(b'"content":" ')
    command = [sys.executable, "-m", "ops.cli", "cancel", running.reply.rid]
    cancelling = await asyncio.create_subprocess_exec(
        *command, f"--state-dir={stack.state_dir}", cwd=ROOT, stdout=subprocess.DEVNULL
    )
    reply = await running.finish(10)
    assert await cancelling.wait() == 0
    assert reply.error is not None
    assert reply.error["code"] == "cancelled"
    for port in ports(stack):
        refused = await post(port, body, headers=key)
        assert (refused.status, refused.json["error"]["code"]) == (409, "already_cancelled")


@pytest.mark.parametrize("bad", ["", "two words", "k" * 256, "schlüssel"])
async def test_a_key_must_be_one_printable_word(stack: RunningStack, bad: str) -> None:
    """Empty, too long, with a space, or not ASCII: 400 that names the header."""
    refused = await post(stack.port, body_of("Hello", 4), headers={"idempotency-key": bad})
    assert refused.status == 400
    assert refused.json["error"]["param"] == "idempotency-key"


async def test_a_failure_is_remembered(stack: RunningStack) -> None:
    """The same key gives the failure again at once, at both gateways, without another try."""
    key, body = new_key(), body_of("prefill fails", stream=False)
    async with witness(stack.record.nats_url) as seen:
        first = await post(ports(stack)[0], body, headers=key)
        assert first.status >= 500
        for port in ports(stack):
            again = await post(port, body, headers=key)
            assert (again.status, again.json["error"]) == (first.status, first.json["error"])
        # Events follow a moment later, those of older requests too.
        ended = EventKind.REQUEST_FAILED
        await seen.until(lambda: seen.of(first.rid, ended), 5, "the end of the request")
        assert len(seen.of(first.rid, EventKind.REQUEST_ASSIGNED)) == 1


@pytest.mark.parametrize("other", [0, 1])
async def test_a_dropped_connection_is_resumed(
    stack: RunningStack, oracle: Oracle, other: int
) -> None:
    """Who lost the stream gets all of it from the first token, and no prompt is computed again."""
    gateways, key, body = ports(stack), new_key(), body_of("slow answer again", 100)
    prompt = oracle.prompt("slow answer again")
    before = await prefilled(stack)
    dropped = await send(gateways[0], body, key)
    await dropped.until(b'"content":" ')
    dropped.hang_up()
    await asyncio.sleep(0.5)
    resumed = await post(gateways[other], body, headers=key)
    assert resumed.claims_completeness, resumed
    assert resumed.rid == dropped.reply.rid
    assert resumed.text == oracle.say(oracle.answer(prompt, 100))
    assert await prefilled(stack) - before == len(prompt)


async def test_another_gateway_takes_over(stack: RunningStack, oracle: Oracle) -> None:
    """The owner is killed: the other gateway goes on with the running attempt, from its start."""
    gateways, key, body = ports(stack), new_key(), body_of("slow answer, taken over", 250)
    prompt = oracle.prompt("slow answer, taken over")
    orphan = await send(gateways[0], body, key)
    await orphan.until(b'"content":" ')
    pid = stack.kill("gateway-0")
    reply = await post(gateways[1], body, headers=key)
    assert reply.claims_completeness, reply
    assert reply.rid == orphan.reply.rid
    assert reply.text == oracle.say(oracle.answer(prompt, 250))
    async with witness(stack.record.nats_url) as seen:
        assert (await until_ended(seen, reply.rid, 5)).state is RequestState.DONE
        story = await seen.bus.read_events(reply.rid)
    assert sum(event.kind is EventKind.STAGE_PREFILL for event in story) == 1
    orphan.hang_up()
    await asyncio.to_thread(stack.wait_replaced, "gateway-0", pid)
    # The new gateway proves the whole path with a prompt of its own, which others must not count.
    deadline = time.monotonic() + 10
    while (await get(gateways[0], "/readyz")).status != 200:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def until_ended(seen: Witness, rid: str, within_s: float) -> RequestRecord:
    """Return the record of a request once it has ended."""
    store = seen.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
    deadline = time.monotonic() + within_s
    while True:
        found = await store.get(rid)
        assert found is not None
        if found.value.ended:
            return found.value
        assert time.monotonic() < deadline, found.value
        await asyncio.sleep(0.1)


async def test_nobody_comes_back(stack: RunningStack) -> None:
    """Ten seconds without a reader end a request, not earlier; a reader elsewhere keeps it alive.

    The other gateway's guest holds the request when its own client has gone.
    """
    gateways = ports(stack)
    left, kept = new_key(), new_key()
    alone = await send(gateways[0], body_of("endless answer", 400), left)
    held = await send(gateways[0], body_of("endless answer", 140), kept)
    async with witness(stack.record.nats_url) as seen:
        await alone.until(b'"content":" ')
        await held.until(b'"content":" ')
        guest = await send(gateways[1], body_of("endless answer", 140), kept)
        await guest.until(b'"content":" ')
        began = time.monotonic()
        alone.hang_up()
        held.hang_up()
        record = await until_ended(seen, alone.reply.rid, ATTACH_S + 5)
        spent = time.monotonic() - began
        assert record.state is RequestState.CANCELLED
        assert ATTACH_S - 0.5 <= spent <= ATTACH_S + 3
        await seen.until(
            lambda: {lease.rid for lease in seen.leases()} <= {guest.reply.rid}, 3, "free engines"
        )
        reply = await guest.finish()
        assert reply.claims_completeness, reply
        assert len(reply.text.split()) == 140
        refused = await post(gateways[0], body_of("endless answer", 400), headers=left)
        assert (refused.status, refused.json["error"]["code"]) == (409, "already_cancelled")


async def test_a_lost_result_is_told(stack: RunningStack) -> None:
    """Answers live in the memory of nats-server: after its death the key gives 409, no new run."""
    key, body = new_key(), body_of("What is lost?", 8)
    first = await post(stack.port, body, headers=key)
    assert first.claims_completeness
    pid = stack.kill("nats-0")
    await asyncio.to_thread(stack.wait_replaced, "nats-0", pid)
    await asyncio.to_thread(stack.wait_ready, 30)
    deadline = time.monotonic() + 15
    while True:
        refused = await post(stack.port, body, headers=key)
        if refused.status != 503:
            break
        assert time.monotonic() < deadline, refused
        await asyncio.sleep(0.2)
    assert (refused.status, refused.json["error"]["code"]) == (409, "result_expired")
    for port in ports(stack):
        # Both gateways have proved the whole path again: what follows counts its own work only.
        while (await get(port, "/readyz")).status != 200:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        fresh = await post(port, body, headers=new_key())
        assert fresh.text == first.text
