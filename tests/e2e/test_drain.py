"""Drain and rolling restarts: what runs is finished, what comes goes elsewhere, nothing fails."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ops.cli.stack.control import Order, give_order
from ops.cli.stack.record import SlotState
from proto.workers import WorkerState
from tests.support.http_client import Exchange, Reply, chat_body, get, post
from tests.support.stack import RunningStack, run_stack
from tests.support.witness import Witness, witness
from tests.support.words import NAME, Oracle, write_words

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

GRACE_S = 15.0
"""How long a process that drains lets its requests go on."""

TOKENS = 80
STREAMS = 5
RATE = 5.0
"""Requests a second during the rolling restart."""

FAULTS = [{"when": "decode", "action": "slow", "seconds": 0.02, "text": "slow answer"}]
QUESTION = "slow answer"

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers are plain words."""
    return write_words(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run two of each service that requests go through."""
    env = {"PDBUS_DECODE_SCRIPT": json.dumps({"faults": FAULTS})}
    pairs = ("--prefill=2", "--decode=2", "--gateways=2", "--routers=2", f"--grace={GRACE_S:g}")
    place = tmp_path_factory.mktemp("stack")
    with run_stack(place, f"--model={folder}", *pairs, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def right(folder: Path) -> str:
    """The right answer to the slow question."""
    oracle = Oracle.load(folder)
    return oracle.say(oracle.answer(oracle.prompt(QUESTION), TOKENS))


@pytest.fixture
async def seen(stack: RunningStack) -> AsyncIterator[Witness]:
    """Watch the bus, from a moment at which every process is there."""
    await asyncio.to_thread(stack.wait_ready, 30)
    async with witness(stack.record.nats_url) as heard:
        await heard.until(
            lambda: (
                len(heard.beats) >= 9
                and all(b.state is WorkerState.READY for b in heard.beats.values())
            ),
            30,
            "a ready fleet",
        )
        yield heard


def ports(stack: RunningStack) -> list[int]:
    """Return the ports of both gateways."""
    return [int(url.rpartition(":")[2]) for url in stack.record.urls]


def body_of(text: str = QUESTION, tokens: int = TOKENS) -> dict[str, Any]:
    """Return a body whose streamed answer has exactly so many tokens."""
    return chat_body(text, model=NAME, max_tokens=tokens, ignore_eos=True, stream=True)


async def streams(port: int, count: int = STREAMS) -> list[Exchange]:
    """Start slow streams and return when each has begun."""
    data = json.dumps(body_of()).encode()
    opened = [await Exchange.open(port, "POST", "/v1/chat/completions", data) for _ in range(count)]
    await asyncio.gather(*(exchange.until(b'"content":" ') for exchange in opened))
    return opened


async def all_finish(opened: list[Exchange], right: str) -> list[Reply]:
    """Check that every stream gives its right answer."""
    replies = await asyncio.gather(*(exchange.finish(GRACE_S) for exchange in opened))
    assert [reply.error for reply in replies] == [None] * len(replies)
    assert {reply.text for reply in replies} == {right}
    assert all(reply.finish_reason == "length" for reply in replies)
    return replies


async def run(*arguments: str) -> tuple[int, str]:
    """Run a command of `pdbus`; return its exit code and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        printed, _ = await process.communicate()
    return process.returncode or 0, printed.decode()


async def until_state(stack: RunningStack, name: str, state: SlotState, within_s: float) -> None:
    """Wait until the supervisor says so of a process."""
    deadline = time.monotonic() + within_s
    while (slot := stack.slot(name)).state is not state:
        assert time.monotonic() < deadline, slot
        await asyncio.sleep(0.05)


async def start_again(stack: RunningStack, name: str) -> None:
    """Start a drained process again and wait until it is ready."""
    await asyncio.to_thread(give_order, stack.state_dir, Order(verb="restart", slot=name))
    await until_state(stack, name, SlotState.READY, 30)


async def test_an_operator_drains_a_worker(stack: RunningStack, seen: Witness, right: str) -> None:
    """`pdbus drain` lets five streams finish, new ones go elsewhere, nothing takes its place.

    Then `pdbus restart` brings a new process.
    """
    instance = stack.slot("decode-0").instance
    opened = await streams(stack.port, 2 * STREAMS)
    mine = [e for e in opened if e.reply.headers["x-pdbus-decode"] == instance]
    assert mine
    draining = asyncio.ensure_future(run("drain", "decode-0", f"--state-dir={stack.state_dir}"))
    await seen.until(
        lambda: any(
            beat.instance == instance and beat.state is WorkerState.DRAINING
            for beat in seen.beats.values()
        ),
        10,
        "the announcement",
    )
    # The first signal after the order asks for what goes on already: nothing is cut off.
    os.kill(stack.pid("decode-0"), signal.SIGTERM)
    later = await post(stack.port, body_of("And now?", 4))
    assert later.claims_completeness
    assert later.headers["x-pdbus-decode"] != instance
    await all_finish(opened, right)
    code, printed = await draining
    assert code == 0, printed
    first, *middle, last = printed.splitlines()
    assert re.fullmatch(rf"{instance} drains, \d+ running", first)
    assert any("running" in line for line in middle)
    assert re.fullmatch(rf"{instance}: drained after [\d.]+ s", last), printed
    slot = stack.slot("decode-0")
    assert (slot.state, slot.pid, slot.reason, slot.restarts) == (SlotState.DRAINED, None, "", 0)
    await asyncio.sleep(1)
    assert stack.slot("decode-0").pid is None
    code, printed = await run("restart", "decode-0", f"--state-dir={stack.state_dir}")
    assert code == 0, printed
    assert printed.splitlines()[-1] == "decode-0: ready"


@pytest.mark.parametrize("name", ["gateway-0", "router-0", "prefill-0", "decode-0", "cleanup-0"])
async def test_sigterm_lets_streams_finish(
    stack: RunningStack, seen: Witness, right: str, name: str
) -> None:
    """Case OPS-03: five streams finish, others are served meanwhile, exit 0 within the grace."""
    first, second = ports(stack)
    opened = await streams(first)
    os.kill(stack.pid(name), signal.SIGTERM)
    began = time.monotonic()
    instance = stack.slot(name).instance
    await seen.until(lambda: seen.beats[instance].state is WorkerState.DRAINING, 2, "draining")
    # The announcement comes first: nobody has to find out by a failure.
    later = await asyncio.gather(*(post(second, body_of("Others?", 4)) for _ in range(4)))
    assert all(reply.claims_completeness for reply in later), later
    if name == "gateway-0":
        assert await refused(first)
    await all_finish(opened, right)
    await until_state(stack, name, SlotState.DRAINED, GRACE_S)
    assert time.monotonic() - began < GRACE_S
    assert (stack.slot(name).pid, stack.slot(name).reason) == (None, "")
    await start_again(stack, name)


async def refused(port: int) -> bool:
    """Return whether a gateway takes no new request: no connection, or 503 at once."""
    try:
        return (await post(port, body_of("Any more?", 4), timeout_s=2)).status == 503
    except ConnectionRefusedError:
        return True


@pytest.mark.parametrize("name", ["gateway-1", "decode-1"])
async def test_a_second_sigterm_ends_at_once(stack: RunningStack, seen: Witness, name: str) -> None:
    """Case NATS-12: who asks twice does not wait; no orderly end, so the process is replaced."""
    # Enough of them, so that each decode has some, whichever router placed them.
    opened = await streams(ports(stack)[1], 8)
    pid, restarts = stack.pid(name), stack.slot(name).restarts
    os.kill(pid, signal.SIGTERM)
    await asyncio.sleep(0.3)
    assert stack.slot(name).pid == pid
    os.kill(pid, signal.SIGTERM)
    await asyncio.to_thread(stack.wait_replaced, name, pid)
    assert stack.slot(name).restarts == restarts + 1
    for exchange in opened:
        reply = await exchange.finish(GRACE_S)
        assert reply.claims_completeness or reply.error or not reply.whole


async def test_a_rolling_restart_fails_no_request(
    stack: RunningStack, seen: Witness, right: str
) -> None:
    """Case OPS-03: each worker in turn is restarted under 5 requests a second; all are answered."""
    flights: list[asyncio.Task[Reply]] = []
    over = asyncio.Event()

    async def load() -> None:
        number = 0
        while not over.is_set():
            port = ports(stack)[number % 2]
            flights.append(asyncio.ensure_future(post(port, body_of(), timeout_s=30)))
            number += 1
            await asyncio.sleep(1 / RATE)

    before = stack.pids()
    loading = asyncio.ensure_future(load())
    workers = ["prefill-0", "prefill-1", "decode-0", "decode-1"]
    for name in workers:
        code, printed = await run("restart", name, f"--state-dir={stack.state_dir}")
        assert code == 0, printed
    over.set()
    await loading
    replies = await asyncio.gather(*flights)
    assert len(replies) >= 30
    bad = [reply for reply in replies if not reply.claims_completeness or reply.text != right]
    assert bad == []
    after = stack.pids()
    changed = {name for name, pid in after.items() if pid != before[name]}
    assert changed == set(workers)
    assert sum(stack.slot(name).restarts for name in ("prefill-0", "prefill-1", "decode-0")) == 0


async def start_time(stack: RunningStack, name: str) -> timedelta:
    """Return how long the newest process of a slot took from its start to readiness."""
    log = stack.state_dir / "logs" / f"{name}.log"
    async with asyncio.timeout(10):
        while True:
            lines = [json.loads(x) for x in log.read_text().splitlines() if x.startswith("{")]
            told = [line for line in lines if line["event"] in {"starting", "ready"}]
            if told[-1]["event"] == "ready":
                starting, ready = (datetime.fromisoformat(line["time"]) for line in told[-2:])
                return ready - starting
            await asyncio.sleep(0.05)


async def test_routers_come_and_go(stack: RunningStack, seen: Witness) -> None:
    """Two routers share the work; with one dead no request fails, and it is back within 2 s.

    The two seconds count from its start to readiness: the fleet is known again from heartbeats.
    """
    pid = stack.kill("router-1")
    for number in range(12):
        reply = await post(ports(stack)[number % 2], body_of("Which router?", 3))
        assert reply.claims_completeness, reply
    await asyncio.to_thread(stack.wait_replaced, "router-1", pid)
    spent = await start_time(stack, "router-1")
    assert spent.total_seconds() < 2.0
    os.kill(stack.pid("router-0"), signal.SIGKILL)
    reply = await post(stack.port, body_of("And the new one?", 3))
    assert reply.claims_completeness, reply
    page = await get(stack.slot("router-1").health_port, "/metrics")
    assert b"pdbus_router_decisions_total" in page.body
