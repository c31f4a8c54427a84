"""One request, one trace: from the caller's header through all processes, and back to no process.

A stack of real processes exports to a collector in this process.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from libs.telemetry.setup import FLUSH_TIMEOUT_S
from proto.kv import Lane
from tests.support.http_client import Exchange, Reply, chat_body, get, post
from tests.support.otlp import Collector, Received, Tree, collecting
from tests.support.stack import RunningStack, run_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

STATE = "vendor=1,other=t61rcWkgMzE"
HTTP = "POST /v1/chat/completions"
LIVE = 'otel_sdk_span_live{otel_span_sampling_result="RECORD_AND_SAMPLE"}'

PLACE = "pdbus.v1.router.place"
CLAIM = "pdbus.v1.router.claim"
RESERVE = "pdbus.v1.decode.{instance}.reserve"
DECODE = "pdbus.v1.decode.{instance}.start"
PREFILL = "pdbus.v1.prefill.{instance}.start"

G, R, P, D = "gateway", "router", "prefill", "decode"
EDGES = {
    ((G, f"send {PLACE}"), (G, HTTP)),
    ((G, "gateway.place"), (G, HTTP)),
    ((G, f"send {PREFILL}"), (G, HTTP)),
    ((G, f"send {DECODE}"), (G, HTTP)),
    ((R, f"process {PLACE}"), (G, f"send {PLACE}")),
    ((R, "router.plan"), (R, f"process {PLACE}")),
    ((R, f"send {RESERVE}"), (R, "router.plan")),
    ((D, f"process {RESERVE}"), (R, f"send {RESERVE}")),
    ((P, f"process {PREFILL}"), (G, f"send {PREFILL}")),
    ((P, "prefill.queue"), (P, f"process {PREFILL}")),
    ((P, "prefill.forward"), (P, f"process {PREFILL}")),
    ((D, f"process {DECODE}"), (G, f"send {DECODE}")),
    ((D, f"send {CLAIM}"), (D, f"process {DECODE}")),
    ((R, f"process {CLAIM}"), (D, f"send {CLAIM}")),
    ((D, "kv.transfer"), (D, f"process {DECODE}")),
    ((D, "decode.first_token"), (D, f"process {DECODE}")),
    ((D, "decode.loop"), (D, f"process {DECODE}")),
}
"""Every span of a request that goes well, and its parent."""

KINDS = {"POST": "server", "send": "producer", "process": "consumer"}

PREFILL_FAULTS = [
    {"when": "transfer", "action": "error", "text": "lost on the way", "attempt": 0},
]
DECODE_FAULTS = [
    {"when": "decode", "action": "slow", "seconds": 0.02, "text": "slow answer"},
    # Slow, so that the first tokens are said before it fails: they wait for the claim.
    {"when": "decode", "action": "slow", "seconds": 0.05, "text": "engine fails"},
    {"when": "decode", "action": "error", "text": "engine fails", "after_tokens": 3},
]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """Collect for all tests of this module."""
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def stack(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run two pairs, so that a lost attempt has a second place, and export at once."""
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "PDBUS_PREFILL_SCRIPT": json.dumps({"faults": PREFILL_FAULTS}),
        "PDBUS_DECODE_SCRIPT": json.dumps({"faults": DECODE_FAULTS}),
    }
    folder = tmp_path_factory.mktemp("stack")
    with run_stack(folder, "--prefill=2", "--decode=2", env=env) as running:
        yield running


@pytest.fixture
def trace() -> str:
    """A trace id of a caller."""
    return secrets.token_hex(16)


def headers(trace: str, flags: str = "01") -> dict[str, str]:
    """Return what a traced caller sends."""
    return {"traceparent": f"00-{trace}-b7ad6b7169203331-{flags}", "tracestate": STATE}


async def ask(stack: RunningStack, text: str = "Hello", *, stream: bool, **headers: str) -> Reply:
    """Ask for a short answer."""
    body = chat_body(text, max_tokens=12, stream=stream)
    return await post(stack.port, body, headers=headers)


def of_request(collector: Collector, rid: str) -> Tree:
    """Return the trace of a request, as far as it has arrived."""
    spans = [s for s in collector.spans if s.attributes.get("pdbus.request.id") == rid]
    return collector.trace(spans[0].trace) if spans else Tree([])


async def whole(collector: Collector, find: Callable[[], Tree]) -> Tree:
    """Wait until a request that went well has all its spans, and return them."""
    await collector.until(lambda: find().edges >= EDGES, what="a whole trace")
    return find()


def text_of_logs(stack: RunningStack) -> str:
    """Return the logs of all processes."""
    logs = sorted((stack.state_dir / "logs").glob("*.log"))
    assert len(logs) >= 5
    return "\n".join(log.read_text(errors="replace") for log in logs)


async def settled(stack: RunningStack, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is true of the stack."""
    deadline = time.monotonic() + 10
    while not await condition():
        assert time.monotonic() < deadline, stack.last_words()
        await asyncio.sleep(0.05)


async def all_spans_ended(stack: RunningStack) -> bool:
    """Return whether every service has ended every span that it has started, by its own count."""
    ports = [slot.health_port for slot in stack.record.slots if slot.role != "nats"]
    pages = await asyncio.gather(*(get(port, "/metrics") for port in ports))
    found = [
        float(line.rpartition(" ")[2])
        for page in pages
        for line in page.body.decode().splitlines()
        if line.startswith(LIVE)
    ]
    # Cleanup has started none, and then it has no such series.
    assert len(found) >= len(ports) - 1
    return not any(found)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_is_one_trace_of_its_caller(
    stack: RunningStack, collector: Collector, trace: str, stream: bool
) -> None:
    """All spans have the caller's trace id and state, the right parent and kind; none is alone."""
    reply = await ask(stack, stream=stream, **headers(trace))
    assert reply.claims_completeness
    tree = await whole(collector, lambda: collector.trace(trace))
    assert tree.edges == EDGES, str(tree)
    (root,) = tree.roots
    assert (root.name, root.parent) == (HTTP, "b7ad6b7169203331")
    for span in tree.spans:
        assert span.state == STATE
        assert span.kind == KINDS.get(span.name.split(" ")[0], "internal"), span
        assert span.start_ns <= span.end_ns, span
        assert not span.failed, span
        assert "error.type" not in span.attributes, span
    (line,) = [
        json.loads(line)
        for line in text_of_logs(stack).splitlines()
        if reply.rid in line and "request served" in line
    ]
    assert line["trace_id"] == trace


async def test_the_http_span_says_what_was_asked_and_answered(
    stack: RunningStack, collector: Collector, trace: str
) -> None:
    """The root has the conventional attributes of HTTP and of GenAI."""
    body = chat_body("Say what was asked", max_tokens=7, ignore_eos=True)
    reply = await post(stack.port, body, headers=headers(trace))
    usage = reply.json["usage"]
    await collector.until(lambda: collector.trace(trace).all(HTTP))
    found = collector.trace(trace).one(HTTP).attributes
    assert (
        found.items()
        >= {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "url.path": "/v1/chat/completions",
            "http.response.status_code": 200,
            "pdbus.request.id": reply.rid,
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "pdbus",
            "gen_ai.request.model": "scripted",
            "gen_ai.request.max_tokens": 7,
            "gen_ai.request.temperature": 0.0,
            "gen_ai.request.stream": False,
            "gen_ai.response.id": reply.json["id"],
            "gen_ai.response.model": "scripted",
            "gen_ai.response.finish_reasons": ("length",),
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": 7,
        }.items()
    )
    assert found["gen_ai.response.time_to_first_chunk"] > 0


async def test_stage_spans_say_what_the_work_was(
    stack: RunningStack, collector: Collector, trace: str
) -> None:
    """Tokens, bytes, lane, places and subjects stand on the spans that they belong to."""
    body = chat_body("Say what the work was", max_tokens=7, ignore_eos=True)
    reply = await post(stack.port, body, headers=headers(trace))
    usage = reply.json["usage"]
    tree = await whole(collector, lambda: collector.trace(trace))
    prefill = tree.one(f"process {PREFILL}").instance
    decode = tree.one(f"process {DECODE}").instance
    assert (
        tree.one("router.plan").attributes.items()
        >= {
            "pdbus.route.policy": "least_loaded",
            "pdbus.route.decision": "placed",
            "pdbus.route.candidates": 4,
            "pdbus.route.prefill": prefill,
            "pdbus.route.decode": decode,
        }.items()
    )
    assert (
        tree.one("prefill.forward").attributes.items()
        >= {
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.cache_read.input_tokens": 0,
        }.items()
    )
    moved = tree.one("kv.transfer").attributes
    assert moved["pdbus.kv.bytes"] == moved["pdbus.kv.expected_bytes"] > 0
    assert moved["pdbus.kv.tokens"] == usage["prompt_tokens"]
    assert moved["pdbus.kv.lane"] in set(Lane) - {Lane.UNKNOWN, Lane.LOCAL}
    assert tree.one("decode.loop").attributes["gen_ai.usage.output_tokens"] == 7
    for span in tree.spans:
        verb, _, template = span.name.partition(" ")
        if verb in {"send", "process"}:
            assert span.attributes["messaging.system"] == "nats"
            assert span.attributes["messaging.operation.type"] == verb
            assert span.attributes["messaging.destination.template"] == template
            assert span.attributes["messaging.destination.name"].startswith("pdbus.v1.")
            assert span.attributes["messaging.message.conversation_id"] == reply.rid
            assert span.attributes["messaging.message.body.size"] > 0
        else:
            assert span.attributes["pdbus.request.id"] == reply.rid, span


async def test_without_a_header_a_trace_begins_here(
    stack: RunningStack, collector: Collector
) -> None:
    """A caller that is not traced gets a new trace, whose root is the HTTP span."""
    replies = [await ask(stack, stream=stream) for stream in (True, False)]
    trees = [await whole(collector, lambda r=r: of_request(collector, r.rid)) for r in replies]
    for tree in trees:
        (root,) = tree.roots
        assert (root.name, root.parent, root.state) == (HTTP, "", "")
        assert tree.edges == EDGES
    assert trees[0].spans[0].trace != trees[1].spans[0].trace


@pytest.mark.parametrize(
    "header",
    [
        "junk",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
async def test_a_malformed_header_begins_a_new_trace(
    stack: RunningStack, collector: Collector, header: str
) -> None:
    """The request is served, and nothing of the bad header is used."""
    reply = await ask(stack, stream=True, traceparent=header, tracestate=STATE)
    assert reply.claims_completeness
    tree = await whole(collector, lambda: of_request(collector, reply.rid))
    (root,) = tree.roots
    assert (root.name, root.parent, root.state) == (HTTP, "", "")
    assert root.trace != "0af7651916cd43dd8448eb211c80319c"


async def test_a_caller_that_does_not_sample_is_obeyed(
    stack: RunningStack, collector: Collector
) -> None:
    """With the flag 00 no process exports any span of the request, streamed or not."""
    unsampled = {secrets.token_hex(16) for _ in range(4)}
    used: set[str] = set()
    for number, trace in enumerate(unsampled):
        reply = await ask(stack, stream=number % 2 == 0, **headers(trace, "00"))
        assert reply.claims_completeness
        used |= {reply.headers["x-pdbus-prefill"], reply.headers["x-pdbus-decode"]}
    # A process exports in order: when later work of all of them is here, nothing is behind it.
    later: set[str] = set()
    while not used <= later:
        replies = await asyncio.gather(*(ask(stack, "And then?", stream=True) for _ in range(3)))
        for reply in replies:
            tree = await whole(collector, lambda r=reply: of_request(collector, r.rid))
            later |= {span.instance for span in tree.spans}
    assert not unsampled & set(collector.traces())


async def test_a_retry_is_a_second_attempt_under_the_same_parent(
    stack: RunningStack, collector: Collector, trace: str
) -> None:
    """A lost transfer fails the spans of its attempt; the second one mends the request."""
    reply = await ask(stack, "lost on the way", stream=True, **headers(trace))
    assert reply.claims_completeness
    tree = await whole(collector, lambda: collector.trace(trace))
    await collector.until(lambda: len(collector.trace(trace).all(f"process {DECODE}")) == 2)
    tree = collector.trace(trace)
    (root,) = tree.roots
    assert root.name == HTTP
    assert not root.failed
    starts = tree.all(f"send {PREFILL}")
    assert [tree.parent_of(span) for span in starts] == [root, root]
    plans = [span.attributes["pdbus.attempt"] for span in tree.all("router.plan")]
    assert plans == [0, 1]
    cut = [span for span in tree.spans if span.failed and span.kind == "internal"]
    assert cut
    for span in cut:
        assert span.attributes["pdbus.attempt"] == 0
        assert span.attributes["error.type"] in {"kv_transfer_failed", "cancelled"}
    assert tree.one("decode.loop").attributes["pdbus.attempt"] == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_is_marked_with_its_code(
    stack: RunningStack, collector: Collector, trace: str, stream: bool
) -> None:
    """An engine's fault fails the HTTP span and its own stage; a bad request fails no span."""
    reply = await ask(stack, "the engine fails", stream=stream, **headers(trace))
    assert reply.error is not None
    assert reply.error["code"] == "engine_error"
    await collector.until(lambda: collector.trace(trace).all(HTTP))
    await collector.until(lambda: collector.trace(trace).all("decode.loop"))
    tree = collector.trace(trace)
    for span in (tree.one(HTTP), tree.one("decode.loop")):
        assert span.failed, span
        assert span.attributes["error.type"] == "engine_error"
    assert tree.one(HTTP).attributes["http.response.status_code"] == (200 if stream else 500)
    assert tree.one("decode.loop").attributes["gen_ai.usage.output_tokens"] >= 1
    bad = secrets.token_hex(16)
    refused = await post(stack.port, b"{", headers=headers(bad))
    assert refused.status == 400
    await collector.until(lambda: collector.trace(bad).all(HTTP))
    (root,) = collector.trace(bad).spans
    assert not root.failed
    assert root.attributes["error.type"] == "invalid_request"
    assert root.attributes["http.response.status_code"] == 400


async def test_streams_that_are_dropped_end_all_their_spans(
    stack: RunningStack, collector: Collector
) -> None:
    """Half of many requests are cancelled mid-way: no span stays open, none has a strange parent.

    No context is detached where it was not attached, and later requests know nothing of it.
    """
    bodies = [chat_body("slow answer", max_tokens=40, stream=n % 3 > 0) for n in range(24)]
    exchanges = await asyncio.gather(
        *(
            Exchange.open(stack.port, "POST", "/v1/chat/completions", json.dumps(body).encode())
            for body in bodies
        )
    )
    dropped, kept = exchanges[::2], exchanges[1::2]
    await dropped[1].until(b'"content"')
    for exchange in dropped:
        exchange.hang_up()
    replies = await asyncio.gather(*(exchange.finish() for exchange in kept))
    replies += [await ask(stack, "And now?", stream=n % 2 == 0) for n in range(5)]
    assert all(reply.claims_completeness for reply in replies)

    def cancelled() -> list[Received]:
        codes = ((s, s.attributes.get("error.type")) for s in collector.spans if s.name == HTTP)
        return [span for span, code in codes if code == "cancelled"]

    await collector.until(lambda: len(cancelled()) >= len(dropped), what="cancelled requests")
    assert all(s.failed for s in cancelled())
    await settled(stack, lambda: all_spans_ended(stack))
    for reply in replies:
        tree = await whole(collector, lambda r=reply: of_request(collector, r.rid))
        assert {s.attributes.get("pdbus.request.id", reply.rid) for s in tree.spans} == {reply.rid}
    for span in cancelled():
        tree = collector.trace(span.trace)
        assert [root.name for root in tree.roots] == [HTTP], str(tree)
    traces = {span.trace for span in cancelled()}
    loops = [s for s in collector.spans if s.name == "decode.loop" and s.trace in traces]
    assert loops
    assert {(s.failed, s.attributes.get("error.type")) for s in loops} == {(True, "cancelled")}
    logs = text_of_logs(stack)
    assert "different Context" not in logs
    assert "Failed to detach context" not in logs


async def test_nothing_begins_a_trace_but_requests(
    stack: RunningStack, collector: Collector
) -> None:
    """Warm-up is one trace; heartbeats, ledger and events make none; no span lacks its parent."""
    await ask(stack, stream=True)
    known = {HTTP, "gateway.warm_up", "cleanup.reclaim"}

    def strange() -> list[str]:
        trees = collector.traces().values()
        roots = [[root.name for root in tree.roots] for tree in trees]
        return [str(names) for names in roots if len(names) != 1 or names[0] not in known]

    await collector.until(lambda: collector.spans and not strange(), what="one root a trace")
    assert any(span.name == "gateway.warm_up" for span in collector.spans)


async def test_a_collector_that_is_away_costs_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Refusing or silent, the collector delays no request, and no exit beyond its limit."""
    with socket.socket() as door:
        # Bound and not listening: connections are refused.
        door.bind(("127.0.0.1", 0))
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{door.getsockname()[1]}"}
        with run_stack(tmp_path_factory.mktemp("stack"), env=env) as stack:
            await twenty(stack)
            # Listening and never accepting: connections open, and nothing ever answers.
            door.listen(64)
            await twenty(stack)
            spent = await asyncio.to_thread(stop_and_time, stack)
        assert spent.keys() >= {"gateway-0", "router-0", "prefill-0", "decode-0", "cleanup-0"}
        # There is nothing to drain; the rest is the last flush and some room for a busy machine.
        assert max(spent.values()) < FLUSH_TIMEOUT_S + 3, spent


async def twenty(stack: RunningStack) -> None:
    """Send twenty requests at once; all are answered well."""
    asked = (ask(stack, f"number {n}", stream=n % 2 == 0) for n in range(20))
    assert all(reply.claims_completeness for reply in await asyncio.gather(*asked))


def stop_and_time(stack: RunningStack) -> dict[str, float]:
    """Stop a stack; return how long each service took from the order to its end."""
    slots = [slot for slot in stack.record.slots if slot.role != "nats" and slot.pid is not None]
    gone: dict[int, float] = {}
    processes = [psutil.Process(slot.pid) for slot in slots]
    stack.supervisor.send_signal(signal.SIGTERM)
    psutil.wait_procs(
        processes, timeout=30, callback=lambda process: gone.update({process.pid: time.time()})
    )
    return {slot.name: gone[slot.pid or 0] - ordered(slot.log) for slot in slots}


def ordered(log: str) -> float:
    """Return when a service was told to stop, by its log."""
    lines = Path(log).read_text(encoding="utf-8").splitlines()
    (line,) = [json.loads(line) for line in lines if '"stop requested"' in line]
    return datetime.fromisoformat(line["time"]).timestamp()
