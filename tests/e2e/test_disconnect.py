"""A client that leaves: in every stage of a request, streamed or not, both engines are free again.

Each test hangs up its connection while the request is in one stage, and watches the bus.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from libs.bus import BucketSpec
from proto.events import EventKind
from proto.ids import RequestId
from proto.ledger import RequestRecord, RequestState
from proto.subjects import BUCKET_REQUESTS
from proto.workers import Role
from tests.support.http_client import Exchange, chat_body, post
from tests.support.stack import RunningStack, run_stack
from tests.support.witness import Witness, witness

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

FREE_S = 2.0
"""Both engines must hold nothing within this time after the client has left."""

ENDS = (EventKind.REQUEST_DONE, EventKind.REQUEST_FAILED, EventKind.REQUEST_CANCELLED)

PREFILL_FAULTS = [
    {"when": "prefill", "action": "stall", "text": "stall in prefill"},
    {"when": "transfer", "action": "stall", "text": "stall in transfer"},
]
DECODE_FAULTS = [{"when": "decode", "action": "slow", "seconds": 0.03, "text": "slow answer"}]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair with a single decode slot and scripted stalls."""
    env = {
        "PDBUS_DECODE_SLOTS": "1",
        "PDBUS_PREFILL_SCRIPT": json.dumps({"faults": PREFILL_FAULTS}),
        "PDBUS_DECODE_SCRIPT": json.dumps({"faults": DECODE_FAULTS}),
    }
    with run_stack(tmp_path_factory.mktemp("stack"), env=env) as running:
        yield running


@pytest.fixture
async def seen(stack: RunningStack) -> AsyncIterator[Witness]:
    """Watch the bus, from a moment at which no engine holds anything."""
    async with witness(stack.record.nats_url) as heard:
        await heard.until(
            lambda: len(heard.beats) >= 5 and not heard.kv_used() and not heard.leases(),
            10,
            "a quiet stack",
        )
        heard.events.clear()
        heard.cancels.clear()
        yield heard


async def start(stack: RunningStack, text: str, *, stream: bool, tokens: int = 400) -> Exchange:
    """Send a request and leave the connection open."""
    body = json.dumps(chat_body(text, max_tokens=tokens, stream=stream)).encode()
    return await Exchange.open(stack.port, "POST", "/v1/chat/completions", body)


async def accepted(seen: Witness, number: int = 1) -> RequestId:
    """Wait until so many requests are accepted, and return the newest."""

    def count() -> bool:
        return sum(e.kind is EventKind.REQUEST_ACCEPTED for e in seen.events) >= number

    await seen.until(count, 5, "acceptance")
    rid = seen.newest_request()
    assert rid is not None
    return rid


async def assert_cancelled(stack: RunningStack, seen: Witness, rid: RequestId) -> None:
    """Check everything that the end of a cancelled request must show."""
    await seen.until(
        lambda: not seen.kv_used(Role.PREFILL) and not seen.kv_used(Role.DECODE),
        FREE_S,
        "zero used KV tokens in both engines",
    )
    await seen.until(lambda: seen.of(rid, *ENDS), FREE_S, "a terminal event")
    await seen.until(lambda: not seen.leases(), 5, "no open lease")
    store = seen.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
    record = await store.get(rid)
    assert record is not None
    assert record.value.state is RequestState.CANCELLED
    # Late copies would come now.
    await asyncio.sleep(0.5)
    assert [event.kind for event in seen.of(rid, *ENDS)] == [EventKind.REQUEST_CANCELLED]
    assert [cancel.rid for cancel in seen.cancels] == [rid]
    reply = await post(stack.port, chat_body("And now?", max_tokens=4), timeout_s=5)
    assert reply.claims_completeness, reply


@pytest.mark.parametrize("stream", [True, False])
async def test_while_prefilling(stack: RunningStack, seen: Witness, stream: bool) -> None:
    """The prompt is being computed: prefill stops and both sides are free."""
    exchange = await start(stack, "stall in prefill", stream=stream)
    rid = await accepted(seen)
    await seen.until(lambda: seen.kv_used(Role.PREFILL), 5, "KV in prefill")
    exchange.hang_up()
    await assert_cancelled(stack, seen, rid)


@pytest.mark.parametrize("stream", [True, False])
async def test_while_transferring(stack: RunningStack, seen: Witness, stream: bool) -> None:
    """The KV is on its way: sender and receiver let go of their pages."""
    exchange = await start(stack, "stall in transfer", stream=stream)
    rid = await accepted(seen)
    await seen.until(
        lambda: seen.kv_used(Role.PREFILL) and seen.kv_used(Role.DECODE), 5, "KV on both sides"
    )
    exchange.hang_up()
    await assert_cancelled(stack, seen, rid)


async def test_while_decoding_a_stream(stack: RunningStack, seen: Witness) -> None:
    """Tokens flow: decode stops in the middle of the answer."""
    exchange = await start(stack, "slow answer", stream=True)
    await exchange.until(b'"content"')
    rid = await accepted(seen)
    exchange.hang_up()
    await assert_cancelled(stack, seen, rid)


async def test_while_decoding_a_whole_answer(stack: RunningStack, seen: Witness) -> None:
    """No byte of the answer has been sent yet, and still the leaving is noticed."""
    exchange = await start(stack, "slow answer", stream=False)
    rid = await accepted(seen)
    await seen.until(lambda: seen.of(rid, EventKind.REQUEST_STREAMING), 5, "the first token")
    exchange.hang_up()
    await assert_cancelled(stack, seen, rid)


@pytest.mark.parametrize("stream", [True, False])
async def test_while_queued(stack: RunningStack, seen: Witness, stream: bool) -> None:
    """The only slot is taken and the request waits for a place: nothing was ever started."""
    holder = await start(stack, "slow answer", stream=True)
    await holder.until(b'"content"')
    exchange = await start(stack, "stall in prefill", stream=stream)
    rid = await accepted(seen, 2)
    exchange.hang_up()
    await seen.until(lambda: seen.of(rid, *ENDS), FREE_S, "a terminal event")
    assert not seen.of(rid, EventKind.REQUEST_ASSIGNED)
    assert [event.kind for event in seen.of(rid, *ENDS)] == [EventKind.REQUEST_CANCELLED]
    holder.hang_up()
    await seen.until(lambda: not seen.kv_used() and not seen.leases(), 5, "free engines")
    reply = await post(stack.port, chat_body("And now?", max_tokens=4), timeout_s=5)
    assert reply.claims_completeness, reply
