"""RT-*: where requests are sent, and sent again. Two pairs of workers."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from proto.events import EventKind
from proto.ledger import RequestState
from tests.cases.adapter import (
    AGAIN_S,
    Flow,
    Processes,
    Product,
    Supervised,
    body_of,
    faults,
)
from tests.support.http_client import Reply, post
from tests.support.stack import RunningStack, run_stack
from tests.support.words import Oracle

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="module"),
]

DEADLINE_S = 6.0
SLOW_S = 3.5
"""How long a slow prompt takes: longer than any silence after which a worker is asked or given up.
"""

PREFILL = faults(
    {"when": "prefill", "action": "stall", "text": "slow prompt", "seconds": SLOW_S},
    {"when": "prefill", "action": "stall", "text": "never ready"},
    {"when": "prefill", "action": "error", "text": "prefill fails"},
)
DECODE = faults({"when": "decode", "action": "slow", "seconds": 0.02, "text": "slow answer"})

INSIDE = (b"nats", b"NATS", b"responders", b"pdbus.v1", b"incarnation", b"Traceback")
"""What no answer may tell."""


@pytest.fixture(scope="module")
def stack(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run two pairs."""
    env = {
        "PDBUS_GATEWAY_REQUEST_TIMEOUT_S": str(DEADLINE_S),
        "PDBUS_PREFILL_SCRIPT": PREFILL,
        "PDBUS_DECODE_SCRIPT": DECODE,
    }
    pairs = ("--prefill=2", "--decode=2", f"--model={words}")
    with run_stack(tmp_path_factory.mktemp("stack"), *pairs, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def processes(stack: RunningStack) -> Processes:
    """All processes."""
    return Supervised(stack)


@pytest.fixture
def alive(stack: RunningStack) -> None:
    """All processes run again."""
    stack.wait_ready(30)


@pytest.mark.parametrize("name", ["decode-1", "prefill-1"])
async def test_a_dead_worker_is_skipped_at_once(
    product: Product, stack: RunningStack, name: str
) -> None:
    """RT-01: kill -9 of one of two workers at 10 requests a second: what was not in it is answered.

    No body tells of the bus, and the worker is used again soon after it is back.
    """
    for _ in range(5):
        await asyncio.gather(*(product.ask("Hello", 2, stream=False) for _ in range(20)))
    instance = product.processes.instance(name)

    def send(number: int) -> Awaitable[Reply]:
        text, tokens = ("slow answer", 40) if number % 3 == 0 else ("A quick one", 4)
        return product.ask(text, tokens, stream=number % 2 == 0)

    flow = Flow(send, rate=10)
    await asyncio.sleep(1.5)
    pid = stack.kill(name)
    killed = asyncio.get_running_loop().time()
    await asyncio.to_thread(stack.wait_replaced, name, pid)
    since = len(product.seen.events)
    kinds = {EventKind.STAGE_DECODE, EventKind.STAGE_PREFILL}
    await product.seen.until(
        lambda: any(
            e.instance == instance and e.kind in kinds for e in product.seen.events[since:]
        ),
        AGAIN_S,
        "work in the new process",
    )
    sent = await flow.stop()
    bad = [one for one in sent if not one.good]
    caught = [one for one in flow.in_flight(killed) if one in bad]
    print(f"{len(sent)} sent, {len(bad)} failed, {len(caught)} of them in flight at the death")
    assert [one.reply for one in bad if one not in caught] == []
    assert [b for one in sent for b in INSIDE if b in one.reply.body] == []


async def test_load_returns_to_zero_and_is_shared_again(product: Product) -> None:
    """RT-04: 100 requests of which many leave, fail or expire: all loads are zero, then shared."""
    dice = random.Random(4)

    async def leave() -> None:
        exchange = await product.open("slow answer", 200)
        await asyncio.sleep(dice.random())
        exchange.hang_up()

    leaving = [leave() for _ in range(40)]
    failing = [product.ask("prefill fails") for _ in range(10)]
    late = [product.ask("never ready") for _ in range(4)]
    fine = [product.ask("Hello", 4) for _ in range(46)]
    await asyncio.gather(*leaving, *failing, *late, *fine)
    await product.at_rest()
    for beat in product.seen.beats.values():
        load = beat.load
        if load is not None:
            busy = (load.running, load.waiting, load.waiting_tokens, load.kv_used_tokens)
            assert busy == (0, 0, 0, 0), beat
            assert load.kv_reserved_tokens == 0
            assert load.slots_free == load.slots
    states = await product.ended()
    assert states[RequestState.FAILED] == 14
    assert states[RequestState.DONE] == 46
    replies: list[Reply] = []
    for number in range(30):
        replies.append(await product.ask(f"One at a time {number}", 2))
        # Until the workers have said that they are idle again.
        await asyncio.sleep(0.08)
    for header in ("x-pdbus-decode", "x-pdbus-prefill"):
        shares = Counter(reply.headers[header] for reply in replies)
        assert sorted(shares) == sorted(
            product.processes.instance(f"{header.rpartition('-')[2]}-{n}") for n in range(2)
        )
        assert max(shares.values()) - min(shares.values()) <= 6, shares


UNCONTINUABLE: list[tuple[str, object]] = [
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
    ("response_format", {"type": "json_object"}),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": {}}}]),
]


async def test_what_could_not_be_continued_is_not_begun(product: Product) -> None:
    """RT-10: where workers have no grammars and no parsers, what needs them is refused whole.

    Plain answers, half-matched stop strings, penalties, log-probabilities and several choices are
    in tests/e2e/test_migration.py.
    """
    for field, value in UNCONTINUABLE:
        for stream in (False, True):
            reply = await post(product.port, body_of("Hello", stream=stream) | {field: value})
            assert reply.error is not None, reply
            assert (reply.status, reply.error["param"]) == (400, field), reply
    assert product.accepted() == set()


async def test_a_slow_prompt_is_not_computed_again(product: Product, oracle: Oracle) -> None:
    """RT-11: prompts that take longer than any silence bound are computed once, in one place."""
    tokens = await product.total("prefill", "pdbus_prefill_tokens_total")
    texts = [f"slow prompt {n} {'x' * 400}" for n in range(16)]
    async with product.starts() as starts:
        replies = await asyncio.gather(*(product.ask(text, 4) for text in texts))
    for text, reply in zip(texts, replies, strict=True):
        assert reply.claims_completeness, reply
        assert reply.text == oracle.say(oracle.answer(oracle.prompt(text), 4))
        assert reply.seconds > SLOW_S
    asked = sum(len(oracle.prompt(text)) for text in texts)
    computed = await product.total("prefill", "pdbus_prefill_tokens_total") - tokens
    assert computed == asked
    assert set(product.executions().values()) == {1}
    sent = Counter((s.message.rid, s.message.attempt, s.role) for s in starts)
    assert len(sent) == 2 * len(texts)
    assert {attempt for _, attempt, _ in sent} == {0}
    places = {(s.message.rid, s.role, s.incarnation) for s in starts}
    assert len(places) == 2 * len(texts)
