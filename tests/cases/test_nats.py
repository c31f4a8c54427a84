"""NATS-*: the bus is away, slow, full, or nobody listens. No supervisor heals anything here.

One gateway, one router, two pairs, one cleanup. The model's context is longer than any message.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nats
import nkeys
import openai
import psutil
import pytest
import pytest_asyncio

from libs.bus import BucketSpec
from libs.bus.testing import NatsServer
from proto.events import EventKind
from proto.ledger import TERMINAL, RequestRecord, RequestState
from proto.subjects import BUCKET_REQUESTS
from tests.cases.adapter import (
    AGAIN_S,
    ANSWER_S,
    FREED_S,
    REFUSED_S,
    Flow,
    Processes,
    Product,
    ask,
    body_of,
    chunks,
    faults,
    opened,
)
from tests.cases.loose import LooseStack
from tests.support.checked.sdk import sdk
from tests.support.http_client import Exchange, Reply, get
from tests.support.proxy import open_proxy
from tests.support.words import NAME, Oracle, write_words

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(90),
    pytest.mark.asyncio(loop_scope="module"),
]

SERVICES = (
    *("router-0", "prefill-0", "prefill-1", "decode-0", "decode-1"),
    *("gateway-0", "cleanup-0"),
)
CONTEXT = 2_000_000
LEASE_S = 2.5
"""Silence after which a worker gets no new work."""
STEP_S = 0.02

PREFILL = faults(
    {"when": "prefill", "action": "stall", "text": "long prompt", "seconds": 3},
)
DECODE = faults({"when": "decode", "action": "slow", "seconds": STEP_S, "text": "slow answer"})
INSIDE = (b"nats", b"NATS", b"responders", b"pdbus.v1")
"""What no answer may tell."""


PERMISSIONS = """
authorization {{
  users: [
    {{ user: "all", password: "none" }}
    {{ nkey: "{key}", permissions: {{
      publish: {{ allow: [">"], deny: ["pdbus.v1.cancel.>"] }}, subscribe: {{ allow: [">"] }} }} }}
  ]
}}
no_auth_user: "all"
"""
"""Everybody may do everything, but for the holder of one key."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of words with a long context."""
    folder = write_words(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = CONTEXT
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def oracle(model: Path) -> Oracle:
    """What the right answers are."""
    return Oracle.load(model)


@pytest.fixture(scope="module")
def pair() -> nkeys.KeyPair:
    """The key of a gateway that may not publish cancels."""
    return nkeys.from_seed(nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER))


@pytest.fixture(scope="module")
def seed(pair: nkeys.KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of that key."""
    file = tmp_path_factory.mktemp("keys") / "gateway.nk"
    file.write_bytes(bytes(pair.seed))
    return file


@contextmanager
def loose(folder: Path, model: Path, extra: str, env: Mapping[str, str]) -> Iterator[LooseStack]:
    """Run a server and nothing else yet; all ends with the context."""
    (folder / "nats").mkdir()
    server = NatsServer(folder / "nats", extra=extra)
    server.start_blocking()
    stack = LooseStack(folder, server, model, env)
    try:
        yield stack
    finally:
        if not server.greets():
            # A test failed while it was away; the services end in order with it only.
            server.stop()
            server.start_blocking()
        try:
            stack.stop()
        finally:
            server.stop()


@pytest.fixture(scope="module")
def stack(
    model: Path, pair: nkeys.KeyPair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LooseStack]:
    """Start all services."""
    env = {
        "PDBUS_PREFILL_SCRIPT": PREFILL,
        "PDBUS_DECODE_SCRIPT": DECODE,
        "PDBUS_GATEWAY_SLOW_CLIENT_S": "3",
    }
    for role in ("PREFILL", "DECODE"):
        env[f"PDBUS_{role}_CONTEXT_TOKENS"] = str(CONTEXT)
        env[f"PDBUS_{role}_KV_TOKENS"] = "1200000"
    extra = PERMISSIONS.format(key=pair.public_key.decode())
    with loose(tmp_path_factory.mktemp("stack"), model, extra, env) as running:
        for name in SERVICES:
            running.start(name)
        asyncio.run(running.ready())
        yield running


@pytest.fixture(scope="module")
def processes(stack: LooseStack) -> Processes:
    """All services."""
    return stack


@pytest_asyncio.fixture(loop_scope="module")
async def alive(stack: LooseStack) -> None:
    """All services run again."""
    for name in SERVICES:
        if name not in stack.names:
            stack.start(name)
    await stack.ready(*SERVICES)


def silent_about_the_bus(*replies: Reply) -> bool:
    """Return whether no body tells of the bus."""
    return not [part for reply in replies for part in INSIDE if part in reply.body]


async def refused(port: int, code: str) -> Reply:
    """Check that a request is refused at once, in OpenAI's shape, with when to try again."""
    reply = await ask(port, "Anybody there?")
    assert reply.error is not None, reply
    assert (reply.status, reply.error["code"]) == (503, code), reply
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.seconds < REFUSED_S
    assert silent_about_the_bus(reply)
    return reply


async def until_refusing(stack: LooseStack, within_s: float) -> str:
    """Wait until the gateway says that it is not ready; return why."""
    async with asyncio.timeout(within_s):
        while (why := await stack.why_not("gateway-0")) == "":
            await asyncio.sleep(0.05)
    return why


async def until_served(port: int, within_s: float) -> None:
    """Wait until a request is answered."""
    async with asyncio.timeout(within_s):
        while not (await ask(port, "Again?", 2)).claims_completeness:
            await asyncio.sleep(0.1)


# NATS-01


async def test_long_prompts_are_carried(product: Product, oracle: Oracle) -> None:
    """NATS-01: prompts of more than 1 MiB on the bus are carried; others do not notice."""
    before = await reconnects(product)
    flow = Flow(lambda n: product.ask(f"Beside it {n}", 4), rate=5)
    texts = ["w" * 300_000, "x" * 700_000, '\u0001\u0002\\"' * 16_000]
    replies = await asyncio.gather(*(product.ask(text, 4) for text in texts))
    for text, reply in zip(texts, replies, strict=True):
        assert reply.claims_completeness, reply
        assert reply.text == oracle.say(oracle.answer(oracle.prompt(text), 4))
    assert [one.reply for one in await flow.stop() if not one.good] == []
    assert await reconnects(product) == before


async def reconnects(product: Product) -> list[float]:
    """Return how often the services have lost and regained the bus."""
    roles = ("gateway", "router", "prefill", "decode")
    return [await product.total(role, "pdbus_bus_reconnects_total") for role in roles]


async def test_prompts_that_are_too_long_are_refused(product: Product) -> None:
    """NATS-01: what fits neither a body, nor the context, nor a message: 413 or 400, and why."""
    before = await reconnects(product)

    async def refusal(text: str) -> tuple[int, str, str]:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": text}], max_tokens=4
            )
        return caught.value.status_code, str(caught.value.code), str(caught.value)

    loop = asyncio.get_running_loop()
    async with sdk(product.port) as client:
        began = loop.time()
        status, code, said = await refusal("w" * (8 << 20))
        assert (status, code) == (413, "request_too_large")
        assert "4194304" in said
        assert loop.time() - began < REFUSED_S
        # More tokens than one message can carry, and fewer than the context has.
        status, code, said = await refusal("w" * 1_100_000)
        assert (status, code) == (413, "request_too_large")
        assert "4194304" in said
        assert (await refusal("w" * (CONTEXT + 200)))[:2] == (400, "context_length_exceeded")
    states = await product.ended()
    assert states == {RequestState.FAILED: 1}
    assert (await product.ask("And now?")).claims_completeness
    assert await reconnects(product) == before


# NATS-03


async def test_a_slow_reader_hurts_itself_only(product: Product, oracle: Oracle) -> None:
    """NATS-03: beside a client that reads a byte at a time, twenty streams come whole and in order.

    What is lost at an overflow, and that it is counted, is shown in tests/integration/bus.
    """
    data = json.dumps(body_of("slow answer", 2000)).encode()
    sipper = await Exchange.open(
        product.port, "POST", "/v1/chat/completions", data, receive_bytes=2048
    )
    sipping = asyncio.ensure_future(sipper.sip(1, 0.2, timeout_s=60))
    await product.newest()
    right = oracle.say(oracle.answer(oracle.prompt("slow answer"), 100))
    replies = await asyncio.gather(*(product.ask("slow answer", 100) for _ in range(20)))
    assert [reply.text for reply in replies] == [right] * 20
    assert all(reply.claims_completeness for reply in replies)
    sipping.cancel()
    await asyncio.wait([sipping])
    await product.freed(FREED_S)


async def test_a_gateway_that_stood_still_has_no_gap(
    product: Product, stack: LooseStack, oracle: Oracle
) -> None:
    """NATS-03: a gateway is stopped for four seconds under twenty streams; none has a gap."""
    right = oracle.say(oracle.answer(oracle.prompt("slow answer"), 150))
    streams = [await product.open("slow answer", 150) for _ in range(20)]
    await asyncio.gather(*(chunks(exchange, 2) for exchange in streams))
    stack.signal("gateway-0", signal.SIGSTOP)
    await asyncio.sleep(4)
    stack.signal("gateway-0", signal.SIGCONT)
    for exchange in streams:
        reply = await exchange.finish(30)
        code = (reply.error or {}).get("code")
        assert reply.claims_completeness or code == "stream_gap", reply
        assert right.startswith(reply.text)
        assert reply.text == right or code is not None


# NATS-04


async def test_nobody_routes(product: Product, stack: LooseStack) -> None:
    """NATS-04: without a router: 503 at once and a reason; it heals when one comes."""
    stack.kill("router-0")
    why = await until_refusing(stack, LEASE_S + 2)
    assert "no router is ready" in why
    await refused(product.port, "no_router")
    async with sdk(product.port) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "Hello"}]
            )
    assert (caught.value.status_code, caught.value.code) == (503, "no_router")
    stack.start("router-0")
    await stack.ready("router-0")
    await until_served(product.port, ANSWER_S)


async def test_nobody_routes_for_a_moment(product: Product, stack: LooseStack) -> None:
    """NATS-04: a router that is replaced at once costs its callers a wait, and no error."""
    stack.kill("router-0")
    stack.start("router-0")
    replies = await asyncio.gather(*(product.ask(f"Number {n}", 2) for n in range(5)))
    for reply in replies:
        # The start of a process on a busy machine may take longer than a caller waits.
        assert reply.claims_completeness or (reply.error or {}).get("code") == "no_router", reply
        assert reply.seconds < ANSWER_S
    assert silent_about_the_bus(*replies)
    await stack.ready("router-0")
    await until_served(product.port, ANSWER_S)


async def test_nobody_works(product: Product, stack: LooseStack) -> None:
    """NATS-04: without decodes: 503 at once and a reason, while they are away and while they load.

    The list of models is empty as long.
    """
    for name in ("decode-0", "decode-1"):
        stack.signal(name, signal.SIGTERM)
        assert await stack.end(name) == 0
    why = await until_refusing(stack, LEASE_S)
    assert "no usable workers" in why
    await refused(product.port, "no_worker")
    assert (await get(product.port, "/v1/models")).json["data"] == []
    loading = faults(start_s=2.0)
    for name in ("decode-0", "decode-1"):
        stack.start(name, "--script", loading)
    async with asyncio.timeout(20):
        while "the engine is starting" not in await stack.why_not("gateway-0"):
            await asyncio.sleep(0.05)
    await refused(product.port, "no_worker")
    await stack.ready("decode-0", "decode-1")
    await until_served(product.port, ANSWER_S)
    # Those had no script: the next test starts its own.
    for name in ("decode-0", "decode-1"):
        stack.signal(name, signal.SIGTERM)
        assert await stack.end(name) == 0


# NATS-05


@pytest.mark.parametrize(
    ("way", "seconds"),
    [
        ("terminate", 4.0),
        pytest.param("kill", 90.0, marks=[pytest.mark.slow, pytest.mark.timeout(240)]),
    ],
)
async def test_the_broker_is_away(
    product: Product, stack: LooseStack, oracle: Oracle, way: str, seconds: float
) -> None:
    """NATS-05: while nats-server is away new requests get 503 at once; then all is as before.

    Running streams go on or end with an error; no process is restarted; nothing runs twice. A
    broker that is killed and comes back at once is in tests/e2e/test_kill.py.
    """
    server = stack.server
    pids = {name: stack.pid(name) for name in SERVICES}
    right = oracle.say(oracle.answer(oracle.prompt("slow answer"), 150))
    streams = [await product.open("slow answer", 150) for _ in range(4)]
    await asyncio.gather(*(chunks(exchange, 2) for exchange in streams))
    loop = asyncio.get_running_loop()
    flow = Flow(lambda n: product.ask(f"Number {n}", 4), rate=5)
    await asyncio.sleep(0.5)
    gone = loop.time()
    await asyncio.to_thread(server.kill if way == "kill" else server.terminate)
    await asyncio.sleep(seconds)
    back = loop.time()
    await server.start()
    replies = await asyncio.gather(*(exchange.finish(30) for exchange in streams))
    await asyncio.sleep(max(0.0, back + ANSWER_S + 1.5 - loop.time()))
    sent = await flow.stop()
    for reply in replies:
        assert right.startswith(reply.text)
        assert reply.text == right or reply.error is not None, reply
    away = [one for one in sent if gone + 0.3 < one.at_s < back - REFUSED_S]
    for one in away:
        assert one.reply.status == 503, one.reply
        assert one.end_s - one.at_s < REFUSED_S
        assert int(one.reply.headers["retry-after"]) >= 1
    later = [one for one in sent if one.at_s > back + ANSWER_S]
    assert len(later) >= 5
    assert [one.reply for one in later if not one.good] == []
    assert silent_about_the_bus(*(one.reply for one in sent))
    assert {name: stack.pid(name) for name in SERVICES} == pids
    assert [run for run, times in product.executions().items() if times > 1] == []
    print(f"{len(sent)} sent, {len([one for one in sent if not one.good])} refused or failed")


# NATS-07


async def test_a_dead_worker_is_out_without_a_word(product: Product, stack: LooseStack) -> None:
    """NATS-07: kill -9 writes no farewell; the worker is used no more within its lease + 1 s."""
    stack.kill("decode-1")
    loop = asyncio.get_running_loop()
    killed = loop.time()
    flow = Flow(lambda n: product.ask(f"Number {n}", 4), rate=8)
    await asyncio.sleep(LEASE_S + 2)
    sent = await flow.stop()
    assert [one.reply for one in sent if not one.good] == []
    assert {one.reply.headers["x-pdbus-decode"] for one in sent} == {"decode-0"}
    late = [one for one in sent if one.at_s > killed + LEASE_S + 1]
    assert late
    assert {one.reply.headers["x-pdbus-attempt"] for one in late} == {"0"}
    models = (await get(product.port, "/v1/models")).json["data"]
    assert [model["id"] for model in models] == [NAME]
    stack.start("decode-1")
    await stack.ready("decode-1")


async def test_a_worker_that_stood_still_is_used_after_it_speaks(
    product: Product, stack: LooseStack, oracle: Oracle
) -> None:
    """NATS-07: SIGSTOP of a worker for three leases: out after one, back once it is heard again.

    It keeps its incarnation: late work of a superseded attempt is fenced by the attempt's number.
    """
    frozen = [stack.pid("decode-1")]
    frozen += [child.pid for child in psutil.Process(frozen[0]).children()]
    loop = asyncio.get_running_loop()
    streams = [await product.open("slow answer", 100) for _ in range(6)]
    await asyncio.gather(*(chunks(exchange, 2) for exchange in streams))
    for pid in frozen:
        psutil.Process(pid).suspend()
    stopped = loop.time()
    flow = Flow(lambda n: product.ask(f"Number {n}", 4), rate=4)
    await asyncio.sleep(3 * LEASE_S)
    quiet = {one.at_s for one in flow.sent if one.at_s > stopped + LEASE_S + 1}
    for pid in frozen:
        psutil.Process(pid).resume()
    since = len(product.seen.events)
    await product.seen.until(
        lambda: any(
            e.instance == "decode-1" and e.kind is EventKind.STAGE_DECODE and "finish" in e.data
            for e in product.seen.events[since:]
        ),
        AGAIN_S,
        "an answer of the worker that went on",
    )
    sent = await flow.stop()
    right = oracle.say(oracle.answer(oracle.prompt("slow answer"), 100))
    for exchange in streams:
        reply = await exchange.finish(ANSWER_S)
        assert right.startswith(reply.text)
        assert reply.text == right or reply.error is not None, reply
    assert quiet
    used = {one.reply.headers.get("x-pdbus-decode") for one in sent if one.at_s in quiet}
    assert used == {"decode-0"}
    assert [one.reply for one in sent if not one.good] == []
    assert [run for run, times in product.executions().items() if times > 1] == []


# NATS-08


async def test_a_start_that_comes_again_runs_once(product: Product, oracle: Oracle) -> None:
    """NATS-08: copies of the starts of a long request, to both sides: one execution, one output."""
    prefilled = await product.total("prefill", "pdbus_prefill_tokens_total")
    decoded = await product.total("decode", "pdbus_decode_tokens_total")
    text = "slow answer to a long prompt"
    client = await nats.connect(product.processes.nats_url)
    try:
        async with product.starts() as starts:
            exchange = await product.open(text, 60)
            await product.seen.until(lambda: len(starts) == 2, 5, "both starts")
            for _ in range(3):
                for start in list(starts[:2]):
                    again = await client.request(start.subject, start.data, timeout=2)
                    assert not again.headers, again.headers
                await asyncio.sleep(1)
        reply = await exchange.finish(30)
    finally:
        await client.close()
    assert reply.claims_completeness, reply
    assert reply.text == oracle.say(oracle.answer(oracle.prompt(text), 60))
    asked = len(oracle.prompt(text))
    assert await product.total("prefill", "pdbus_prefill_tokens_total") == prefilled + asked
    assert await product.total("decode", "pdbus_decode_tokens_total") == decoded + 60
    assert set(product.executions().values()) == {1}


async def test_a_start_that_waited_too_long_is_dropped(product: Product, stack: LooseStack) -> None:
    """NATS-08: starts that lay before a stopped prefill for six seconds are refused, not run."""
    before = await product.total("prefill", "pdbus_prefill_tokens_total")
    for name in ("prefill-0", "prefill-1"):
        stack.signal(name, signal.SIGSTOP)
    try:
        flights = [asyncio.ensure_future(product.ask(f"Number {n}")) for n in range(4)]
        await product.newest(4)
        stale = product.accepted()
        replies = await asyncio.gather(*flights)
        await asyncio.sleep(max(0.0, 6.0 - max(reply.seconds for reply in replies)))
    finally:
        for name in ("prefill-0", "prefill-1"):
            stack.signal(name, signal.SIGCONT)
    for reply in replies:
        assert (reply.error or {}).get("code") == "prefill_lost", reply
    await until_served(product.port, AGAIN_S)
    # What runs now is the question of this moment, and the gateway's own warm-up.
    assert {rid for rid, _ in product.executions()} & stale == set()
    tokens = await product.total("prefill", "pdbus_prefill_tokens_total") - before
    assert tokens < 100


# NATS-10


async def test_a_write_whose_answer_is_late_is_made_once(
    product: Product, stack: LooseStack
) -> None:
    """NATS-10: acknowledgements come later than they are waited for: one record a request.

    The second gateway reaches the bus through a proxy that holds everything up for a while.
    """
    async with open_proxy(lambda: stack.server.port) as proxy:
        stack.start("gateway-1", nats=f"nats://127.0.0.1:{proxy.port}")
        try:
            await stack.ready("gateway-1")
            product.seen.events.clear()
            port = stack.gateway_port("gateway-1")
            proxy.slow(0.7)
            flights = [asyncio.ensure_future(ask(port, f"Number {n}", 4)) for n in range(20)]
            await asyncio.sleep(1.3)
            proxy.heal()
            replies = await asyncio.gather(*flights)
            good = [reply for reply in replies if reply.claims_completeness]
            for reply in replies:
                code = (reply.error or {}).get("code")
                assert reply in good or code in {"bus_unavailable", "no_router", "bus_lost"}, reply
            records = await records_of(product, "gateway-1")
            print(f"{len(good)} of {len(replies)} answered, {len(records)} records")
            assert len(records) <= len(replies)
            assert len(records) >= len(good) > 0
            assert sum(record.state is RequestState.DONE for record in records) == len(good)
            assert [run for run, times in product.executions().items() if times > 1] == []
        finally:
            proxy.heal()
            stack.signal("gateway-1", signal.SIGTERM)
            assert await stack.end("gateway-1") == 0


async def records_of(product: Product, gateway: str) -> list[RequestRecord]:
    """Return what a gateway has recorded of its clients in this test, once all of it has ended."""
    store = product.seen.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
    async with asyncio.timeout(15):
        while True:
            found = [record.value async for _, record in store.scan()]
            mine = [
                record
                for record in found
                if record.sink.gateway == gateway and record.digest != "warm-up"
                if not product.is_old(record.rid)
            ]
            if all(record.state in TERMINAL for record in mine):
                return mine
            await asyncio.sleep(0.2)


# NATS-12


async def test_what_waits_for_a_draining_decode_goes_elsewhere(
    product: Product, stack: LooseStack, oracle: Oracle
) -> None:
    """NATS-12: SIGTERM of a decode with streams in it and messages before it: all are served.

    The messages lie before a stopped process when the signal comes. Other drains, and the second
    signal, are in tests/e2e/test_drain.py.
    """
    streams = [await product.open("slow answer", 120) for _ in range(10)]
    await asyncio.gather(*(chunks(exchange, 2) for exchange in streams))
    mine = [e for e in streams if e.reply.headers["x-pdbus-decode"] == "decode-1"]
    assert len(mine) >= 2
    stack.signal("decode-1", signal.SIGSTOP)
    flights = [asyncio.ensure_future(product.ask(f"Number {n}", 4)) for n in range(20)]
    await product.newest(30)
    await asyncio.sleep(0.1)
    stack.signal("decode-1", signal.SIGTERM)
    stack.signal("decode-1", signal.SIGCONT)
    replies = await asyncio.gather(*flights)
    assert [reply for reply in replies if not reply.claims_completeness] == []
    right = oracle.say(oracle.answer(oracle.prompt("slow answer"), 120))
    for exchange in streams:
        reply = await exchange.finish(20)
        assert reply.claims_completeness, reply
        assert reply.text == right
    assert await stack.end("decode-1", 20) == 0
    assert await product.ended() == {RequestState.DONE: 30}
    assert [run for run, times in product.executions().items() if times > 1] == []


# NATS-14


async def test_a_denied_subject_is_told(product: Product, stack: LooseStack, seed: Path) -> None:
    """NATS-14: a service that lacks a permission is not ready, and says and counts which.

    There are no documented permission sets yet. Denied subscriptions and inboxes are in
    tests/integration/bus/test_connect.py.
    """
    stack.start("gateway-1", "--nats-seed-file", str(seed))
    try:
        await stack.ready("gateway-1")
        exchange = await opened(stack.gateway_port("gateway-1"), "slow answer", 400)
        await chunks(exchange, 2)
        exchange.hang_up()
        async with asyncio.timeout(ANSWER_S):
            while not (why := await stack.why_not("gateway-1")):
                await asyncio.sleep(0.05)
        assert "pdbus.v1.cancel" in why
        denied = "pdbus_bus_permission_errors_total"
        assert await product.total("gateway-1", denied, operation="publish") >= 1
        assert "pdbus.v1.cancel" in stack.log("gateway-1")
        # The other two ways of a cancel have freed both sides all the same.
        await product.freed(ANSWER_S)
    finally:
        stack.signal("gateway-1", signal.SIGTERM)
        assert await stack.end("gateway-1") == 0
