"""A decode that dies in the middle of an answer, where the policy lets another one go on.

Answers are words, one a token, so a token that is missing, doubled or out of place shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from libs.bus import BucketSpec
from ops.cli.views.trace import complete
from proto.events import Event, EventKind
from proto.ledger import RequestRecord, RequestState
from proto.subjects import BUCKET_REQUESTS
from tests.support.http_client import Exchange, Reply, chat_body, post
from tests.support.stack import RunningStack, run_stack
from tests.support.witness import Witness, witness
from tests.support.words import NAME, Oracle, write_words

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

TOKENS = 60
CUT = 10
"""Tokens after which a scripted crash strikes."""
CRASH = {"when": "decode", "action": "crash", "after_tokens": CUT}
FAULTS = [
    {"when": "decode", "action": "slow", "seconds": 0.02, "text": "slow answer"},
    {**CRASH, "text": "crash once", "attempt": 0},
    {**CRASH, "text": "crash twice", "attempt": 0},
    {**CRASH, "text": "crash twice", "attempt": 1},
    {**CRASH, "text": "crash always"},
]
ACCEPTED = 36
"""Requests before each test: a tenth of the last minute's is the budget of second attempts."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers are plain words."""
    return write_words(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def stack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run three decodes."""
    env = {"PDBUS_DECODE_SCRIPT": json.dumps({"faults": FAULTS})}
    options = (f"--model={folder}", "--decode=3", "--recover=any")
    with run_stack(tmp_path_factory.mktemp("stack"), *options, env=env) as running:
        yield running


async def fill_budget(stack: RunningStack) -> None:
    """Let the gateway accept some requests."""
    for _ in range(ACCEPTED // 12):
        replies = await asyncio.gather(
            *(post(stack.port, body_of("Hello", 2, stream=False)) for _ in range(12))
        )
        assert all(reply.claims_completeness for reply in replies)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    """What the right answers are."""
    return Oracle.load(folder)


@pytest.fixture
async def seen(stack: RunningStack) -> AsyncIterator[Witness]:
    """Watch the bus, from a moment at which all decodes are there and may be lost."""
    await asyncio.to_thread(stack.wait_ready, 30)
    async with witness(stack.record.nats_url) as heard:
        await heard.until(
            lambda: (
                sum(b.role == "decode" and b.state == "ready" for b in heard.beats.values()) == 3
                and not heard.leases()
            ),
            30,
            "three decodes",
        )
        await fill_budget(stack)
        await heard.until(lambda: not heard.leases(), 30, "all at rest")
        yield heard


def body_of(
    text: str, tokens: int = TOKENS, *, stream: bool = True, **fields: Any
) -> dict[str, Any]:
    """Return a body whose answer has exactly so many tokens."""
    body = chat_body(text, model=NAME, max_tokens=tokens, ignore_eos=True, stream=stream, **fields)
    return body | {"stream_options": {"include_usage": True}} if stream else body


def usage_of(reply: Reply) -> Any:
    """Return the usage that an answer names."""
    if not reply.is_stream:
        return reply.json["usage"]
    return next(e["usage"] for e in reply.events if isinstance(e, dict) and e.get("usage"))


def engine_host(stack: RunningStack, instance: str) -> int:
    """Return the process id of the engine host of one worker."""
    slot = next(slot for slot in stack.record.slots if slot.instance == instance)
    (host,) = psutil.Process(slot.pid).children()
    return host.pid


async def story(seen: Witness, rid: str, within_s: float = 10.0) -> list[Event]:
    """Return the events of a request once all its leases are proved free."""
    async with asyncio.timeout(within_s):
        while not complete(events := await seen.bus.read_events(rid)):
            await asyncio.sleep(0.1)
    return events


def cuts(events: list[Event]) -> list[int]:
    """Return the offsets at which attempts were lost, as the gateway tells."""
    lost = [e for e in events if e.kind is EventKind.ATTEMPT_FAILED and "emitted" in e.data]
    return [int(event.data["emitted"]) for event in sorted(lost, key=lambda e: e.attempt)]


async def check_moved(
    seen: Witness, oracle: Oracle, question: str, reply: Reply, migrations: int
) -> list[int]:
    """Check a complete answer that has moved so often; return where."""
    assert reply.error is None, reply
    assert reply.finish_reason == "length"
    events = await story(seen, reply.rid)
    offsets = cuts(events)
    assert len(offsets) == migrations
    assert reply.text == oracle.say(oracle.moved(question, TOKENS, *offsets))
    usage = usage_of(reply)
    assert usage["completion_tokens"] == TOKENS
    assert usage["x_pdbus"] == {"migrations": migrations}
    (done,) = [e for e in events if e.kind is EventKind.REQUEST_DONE]
    assert (done.data["migrations"], done.attempt) == (migrations, migrations)
    found = await seen.bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord).get(reply.rid)
    assert found is not None
    assert found.value.state is RequestState.DONE
    assert found.value.usage is not None
    assert found.value.usage.migrations == migrations
    streamed = [e for e in events if e.kind is EventKind.STAGE_PREFILL]
    assert len(streamed) == migrations + 1
    return offsets


async def test_a_killed_decode_is_followed_by_another(
    stack: RunningStack, seen: Witness, oracle: Oracle
) -> None:
    """Case RT-10: kill -9 of the engine; the client gets every token of the answer once."""
    question = "slow answer, please"
    words = oracle.say(oracle.answer(oracle.prompt(question), TOKENS)).split()
    # A word that was not said before shows how far the answer has come.
    far = next(i for i in range(12, TOKENS) if words[i] not in words[:i])
    data = json.dumps(body_of(question)).encode()
    exchange = await Exchange.open(stack.port, "POST", "/v1/chat/completions", data)
    reply = await exchange.until(f'"content":" {words[far]}"'.encode())
    os.kill(engine_host(stack, reply.headers["x-pdbus-decode"]), signal.SIGKILL)
    reply = await exchange.finish()
    (offset,) = await check_moved(seen, oracle, question, reply, 1)
    assert offset > far
    assert reply.text.split()[:offset] == words[:offset]


async def test_a_whole_answer_moves_too(stack: RunningStack, seen: Witness, oracle: Oracle) -> None:
    """An answer in one piece is completed elsewhere, and its head tells so."""
    reply = await post(stack.port, body_of("crash once", stream=False))
    await check_moved(seen, oracle, "crash once", reply, 1)
    assert reply.headers["x-pdbus-migrations"] == "1"
    assert reply.headers["x-pdbus-attempt"] == "1"


async def test_an_answer_may_move_twice(stack: RunningStack, seen: Witness, oracle: Oracle) -> None:
    """Two decodes die under one answer; a third one completes it."""
    reply = await post(stack.port, body_of("crash twice"))
    await check_moved(seen, oracle, "crash twice", reply, 2)


async def test_it_does_not_move_for_ever(stack: RunningStack, seen: Witness) -> None:
    """The third loss is the end: a typed error event, no finish, all memory free."""
    reply = await post(stack.port, body_of("crash always"))
    assert reply.error is not None
    assert reply.error["code"] == "decode_lost"
    assert reply.finish_reason is None
    events = await story(seen, reply.rid)
    assert len(cuts(events)) == 3
    assert [e.data["code"] for e in events if e.kind is EventKind.REQUEST_FAILED] == ["decode_lost"]


async def test_a_half_matched_stop_string_does_not_move(
    stack: RunningStack, seen: Witness, oracle: Oracle
) -> None:
    """Case RT-10: what is held back cannot be told to another engine, so the answer fails."""
    words = oracle.answer(oracle.prompt("crash once"), 2 * CUT)
    # From the fourth word on all could be the stop string, until it is not.
    stop = f"{oracle.say(words[3:])} never"
    reply = await post(stack.port, body_of("crash once", stop=[stop]))
    assert reply.error is not None
    assert reply.error["code"] == "decode_lost"
    assert reply.text == oracle.say(words[:3])
    events = await story(seen, reply.rid)
    (lost,) = [e for e in events if e.kind is EventKind.ATTEMPT_FAILED and e.data.get("final")]
    assert lost.data["final"] == "a part of the text is held back"


async def test_penalties_do_not_move(stack: RunningStack, seen: Witness) -> None:
    """Another engine has not counted what was said, so an answer with penalties fails."""
    reply = await post(stack.port, body_of("crash once", frequency_penalty=0.5))
    assert reply.error is not None
    assert reply.error["code"] == "decode_lost"
    assert complete(await story(seen, reply.rid))


async def test_several_choices_do_not_move(stack: RunningStack, seen: Witness) -> None:
    """Case RT-10: of several choices, and with log-probabilities, nothing is continued."""
    for fields in ({"n": 2}, {"logprobs": True}):
        reply = await post(stack.port, body_of("crash once", **fields))
        assert reply.error is not None, (fields, reply)
        assert reply.error["code"] == "decode_lost"
        assert reply.finish_reason is None
        assert complete(await story(seen, reply.rid))
        await asyncio.to_thread(stack.wait_ready, 30)
