"""What an operator sees and does: requests, cancel, trace, workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from libs.bus import BucketSpec
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.ids import InstanceId
from proto.ledger import Cleaned, RequestRecord, RequestState
from proto.subjects import BUCKET_REQUESTS
from proto.workers import Role
from tests.support.http_client import Exchange, Reply, chat_body, post
from tests.support.stack import RunningStack, run_stack
from tests.support.witness import Witness, witness

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

FAULTS = [{"when": "decode", "action": "slow", "seconds": 0.03, "text": "slow answer"}]
WIDE = {"COLUMNS": "200"}

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair with two decode slots behind two gateways."""
    env = {"PDBUS_DECODE_SCRIPT": json.dumps({"faults": FAULTS}), "PDBUS_DECODE_SLOTS": "2"}
    with run_stack(tmp_path_factory.mktemp("stack"), "--gateways=2", env=env) as running:
        yield running


@pytest.fixture
async def seen(stack: RunningStack) -> AsyncIterator[Witness]:
    """Watch the bus, from a moment at which no engine holds anything."""
    await asyncio.to_thread(stack.wait_ready, 30)
    async with witness(stack.record.nats_url) as heard:
        await heard.until(
            lambda: (
                len(heard.beats) >= 6
                and all(b.state == "ready" for b in heard.beats.values())
                and not heard.leases()
            ),
            30,
            "a quiet stack",
        )
        yield heard


async def pdbus(stack: RunningStack, *arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, what it printed, and what it complained of."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ops.cli", *arguments, f"--state-dir={stack.state_dir}"),
        cwd=ROOT,
        env=os.environ | WIDE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        printed, complained = await process.communicate()
    return process.returncode or 0, printed.decode(), complained.decode()


async def records(stack: RunningStack, *arguments: str) -> list[RequestRecord]:
    """Return what `pdbus requests --json` says."""
    code, printed, complained = await pdbus(stack, "requests", "--json", *arguments)
    assert code == 0, complained
    return [msgspec.json.decode(line, type=RequestRecord) for line in printed.splitlines()]


async def start(stack: RunningStack, gateway: int = 0, **fields: Any) -> Exchange:
    """Send a slow request; the connection stays open."""
    body = chat_body("slow answer", stream=True, max_tokens=300, ignore_eos=True, **fields)
    port = int(stack.record.urls[gateway].rpartition(":")[2])
    data = json.dumps(body).encode()
    return await Exchange.open(port, "POST", "/v1/chat/completions", data)


async def started(stack: RunningStack, gateway: int = 0) -> Exchange:
    """Send a slow request and return at its first token."""
    exchange = await start(stack, gateway)
    await exchange.until(b'"object":"chat.completion.chunk"')
    return exchange


def engine_host(stack: RunningStack, name: str) -> int:
    """Return the process id of the engine host of one worker."""
    (host,) = psutil.Process(stack.pid(name)).children()
    return host.pid


async def test_requests_tells_where_each_stands(stack: RunningStack, seen: Witness) -> None:
    """Newest first, with state, workers, tokens and what was freed; filters and JSON agree."""
    answered = await post(stack.port, chat_body("Hello", max_tokens=5, ignore_eos=True))
    running = await started(stack)
    await seen.until(lambda: seen.of(answered.rid, EventKind.LEASE_FREED), 5, "a freed lease")
    await asyncio.sleep(1.2)
    code, printed, _ = await pdbus(stack, "requests", "--limit=2")
    assert code == 0
    head, first, second = printed.splitlines()
    assert head.split() == (
        [
            "request",
            "age",
            "state",
            "attempt",
            "mode",
            "prefill",
            "decode",
            "tokens",
            "freed",
            "error",
        ]
    )
    prefill, decode = (stack.slot(name).instance for name in ("prefill-0", "decode-0"))
    facts = first.split()
    assert (facts[0], *facts[2:7]) == (
        running.reply.rid,
        *("streaming", "0", "disaggregated", prefill, decode),
    )
    facts = second.split()
    assert (facts[0], facts[2], *facts[5:]) == (
        answered.rid,
        *("done", prefill, decode, f"{answered.json['usage']['prompt_tokens']}+5", "src", "dst"),
    )
    (record,) = await records(stack, "--state=streaming")
    assert (record.rid, record.state) == (running.reply.rid, RequestState.STREAMING)
    both = await records(stack, "--state=streaming", "--state=done")
    assert {record.rid for record in both} >= {running.reply.rid, answered.rid}
    assert len(await records(stack, "--limit=1")) == 1
    running.hang_up()


async def test_an_answered_request_is_clean_when_its_client_has_its_end(
    stack: RunningStack, seen: Witness
) -> None:
    """Decode says with its last chunk that it holds nothing, and the end of the record says so too.

    So does prefill, whose word comes by another way; where it was too late, cleanup writes it.
    """
    answered = await post(stack.port, chat_body("Hello", max_tokens=5, ignore_eos=True))
    store = seen.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)
    found = await store.get(answered.rid)
    assert found is not None
    assert (found.value.state, found.value.cleaned.dst) == (RequestState.DONE, True)
    await seen.until(
        lambda: len(seen.of(answered.rid, EventKind.LEASE_FREED)) == 2, 5, "both proofs"
    )
    async with asyncio.timeout(15):
        while found is not None and found.value.cleaned != Cleaned(src=True, dst=True):
            await asyncio.sleep(0.2)
            found = await store.get(answered.rid)


async def test_cancel_frees_both_engines(stack: RunningStack, seen: Witness) -> None:
    """The owner ends it, both leases are proved free, the client and the story say why."""
    running = await started(stack, 1)
    rid = running.reply.rid
    code, printed, _ = await pdbus(stack, "cancel", f"chatcmpl-{rid}", "--reason=too long")
    assert code == 0, printed
    owner = stack.slot("gateway-1").instance
    prefill, decode = (stack.slot(name).instance for name in ("prefill-0", "decode-0"))
    assert sorted(printed.splitlines()) == sorted(
        [
            f"its gateway {owner} ends it",
            f"request {rid} is cancelled: too long",
            f"src {prefill}: freed (owner)",
            f"dst {decode}: freed (owner)",
        ]
    )
    reply = await running.finish(5)
    assert reply.error is not None
    assert reply.error["code"] == "cancelled"
    assert "too long" not in reply.body.decode()
    (told,) = seen.of(rid, EventKind.REQUEST_CANCELLED)
    assert told.data["reason"] == "too long"
    drawn = (await pdbus(stack, "trace", rid))[1]
    assert "cancelled (cancelled); src freed (owner), dst freed (owner)" in drawn
    code, printed, _ = await pdbus(stack, "cancel", rid)
    assert code == 0
    assert printed.splitlines()[0] == f"request {rid} was cancelled already: too long"


async def test_cancel_of_a_request_that_waits(stack: RunningStack, seen: Witness) -> None:
    """Both slots are taken: the third request is cancelled in the queue and held nothing."""
    holders = [await started(stack) for _ in range(2)]
    waiting = await start(stack, 1)

    def accepted() -> bool:
        return sum(e.kind is EventKind.REQUEST_ACCEPTED for e in seen.events) >= 3

    await seen.until(accepted, 5, "acceptance")
    rid = seen.newest_request()
    assert rid is not None
    code, printed, _ = await pdbus(stack, "cancel", rid)
    assert code == 0, printed
    assert [line.split()[0] for line in printed.splitlines()] == ["its", "request"]
    reply = await waiting.finish(5)
    assert (reply.status, reply.error and reply.error["code"]) == (499, "cancelled")
    assert not seen.of(rid, EventKind.REQUEST_ASSIGNED)
    for holder in holders:
        holder.hang_up()


async def test_cancel_without_its_gateway(stack: RunningStack, seen: Witness) -> None:
    """The owner is dead: the command writes the end itself, once, and the engines obey."""
    running = await started(stack, 1)
    rid, owner = running.reply.rid, stack.slot("gateway-1").instance
    pid = stack.kill("gateway-1")
    code, printed, _ = await pdbus(stack, "cancel", rid, "--reason=orphan")
    assert code == 0, printed
    lines = printed.splitlines()
    assert f"its gateway {owner} is gone: it is ended here" in lines
    assert f"dst {stack.slot('decode-0').instance}: freed (owner)" in lines
    await seen.until(lambda: not seen.kv_used(Role.DECODE), 3, "a free decode")
    (told,) = seen.of(rid, EventKind.REQUEST_CANCELLED)
    assert (told.instance, told.data["reason"]) == (InstanceId("pdbus-cli"), "orphan")
    assert [cancel.rid for cancel in seen.cancels] == [rid]
    mine = [record for record in await records(stack) if record.rid == rid]
    assert [(r.state, r.error, r.detail) for r in mine] == [
        (RequestState.CANCELLED, ErrorCode.CANCELLED, "orphan")
    ]
    running.hang_up()
    await asyncio.to_thread(stack.wait_replaced, "gateway-1", pid)


async def test_a_lost_decode_is_told(stack: RunningStack, seen: Witness) -> None:
    """Where the policy is `never` the client gets a typed error; trace and list tell the cause."""
    running = await started(stack)
    await asyncio.sleep(0.3)
    os.kill(engine_host(stack, "decode-0"), signal.SIGKILL)
    reply: Reply = await running.finish(5)
    assert reply.error is not None
    assert reply.error["code"] == "decode_lost"
    assert reply.finish_reason is None
    assert "[DONE]" not in reply.events
    rid = reply.rid
    await seen.until(lambda: len(seen.of(rid, EventKind.LEASE_FREED)) == 2, 10, "both leases")
    drawn = (await pdbus(stack, "trace", rid))[1]
    line = next(line for line in drawn.splitlines() if line.startswith("attempt 0"))
    assert "tokens: decode_lost, no other one: the policy is never" in line
    assert "src freed (owner), dst freed (owner)" in line
    (record,) = [r for r in await records(stack, "--state=failed") if r.rid == rid]
    assert record.error is ErrorCode.DECODE_LOST
    listed = (await pdbus(stack, "requests", "--state=failed"))[1]
    assert "decode_lost" in listed


async def test_workers_shows_load(stack: RunningStack, seen: Witness) -> None:
    """The list names each process once; a running request is seen in the load of decode."""
    running = await started(stack)
    code, printed, _ = await pdbus(stack, "workers")
    assert code == 0
    for slot in stack.record.slots:
        if slot.role != "nats":
            assert printed.count(slot.instance) == 1
    decode = next(line for line in printed.splitlines() if line.startswith("decode"))
    assert "1/2" in decode.split()
    running.hang_up()


WRONG = {
    ("cancel", "0" * 26): "there is no request",
    ("cancel", "nonsense"): "is no request id",
    ("drain", "decode-9"): "there is no process",
    ("drain", "gateway-0"): "there is no worker",
    ("restart", "decode-9"): "there is no process",
}


async def test_what_cannot_be_done_is_one_line(stack: RunningStack) -> None:
    """A wrong id or name ends with one line and a non-zero code, never a traceback."""
    outcomes = await asyncio.gather(*(pdbus(stack, *arguments) for arguments in WRONG))
    for words, (code, printed, complained) in zip(WRONG.values(), outcomes, strict=True):
        assert (code, printed) == (1, "")
        assert len(complained.splitlines()) == 1, complained
        assert words in complained


async def test_an_ended_request_cannot_be_cancelled(stack: RunningStack, seen: Witness) -> None:
    """A finished answer stays what it is."""
    answered = await post(stack.port, chat_body("Hello", max_tokens=3))
    code, _, complained = await pdbus(stack, "cancel", answered.rid)
    assert code == 1
    assert complained == f"pdbus: request {answered.rid} has ended already: done\n"
