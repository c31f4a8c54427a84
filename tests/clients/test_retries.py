"""Both clients try again what may be tried again, no sooner than they are told to."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.clients.node import Node
from tests.clients.told import SLOW_TEXT, idle, reaches, say
from tests.support.checked.sdk import sdk
from tests.support.http_client import Exchange, chat_body
from tests.support.stack import RunningStack
from tests.support.words import NAME

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

RETRIES = 8
HELD = 60
"""Tokens of the answer that takes the only place; each takes 50 ms."""
QUEUE = 3
"""One more than twice the places: then the next one is refused."""


@pytest.fixture
async def taken(narrow: RunningStack) -> AsyncIterator[None]:
    """Let other clients take the only place for some seconds, and all places of its queue."""
    narrow.wait_ready()
    first = await send(narrow, SLOW_TEXT, HELD)
    await first.until(b'"content":"')
    others = [await send(narrow, say("Mine."), 20) for _ in range(QUEUE)]
    await reaches(narrow.port, "queued", QUEUE)
    reading = [asyncio.ensure_future(one.finish()) for one in (first, *others)]
    yield
    assert all(reply.claims_completeness for reply in await asyncio.gather(*reading))
    await idle(narrow.port)


async def send(stack: RunningStack, text: str, tokens: int) -> Exchange:
    """Ask for a stream of so many tokens at most."""
    fields = {"model": NAME, "stream": True, "max_tokens": tokens, "ignore_eos": tokens == HELD}
    data = json.dumps(chat_body(text, **fields)).encode()
    return await Exchange.open(stack.port, "POST", "/v1/chat/completions", data)


def body() -> dict[str, Any]:
    message = {"role": "user", "content": say("Now.")}
    return {"model": NAME, "messages": [message], "max_tokens": 20}


async def python(stack: RunningStack) -> tuple[str, list[tuple[int, str | None]]]:
    """Ask with the Python client; return the text, and status and hint of each attempt."""
    noted: list[httpx.Response] = []
    async with sdk(stack.port, max_retries=RETRIES, noted=noted) as client:
        answer = await client.chat.completions.create(**body())
    text = answer.choices[0].message.content
    return text or "", [(one.status_code, one.headers.get("retry-after")) for one in noted]


async def npm(node: Node, stack: RunningStack) -> tuple[str, list[dict[str, Any]]]:
    """Ask with the npm client; return the text and what came of each attempt."""
    given = {"model": NAME, "text": say("Now."), "fields": {"max_tokens": 20}}
    found = await asyncio.to_thread(node.run, "retried", stack.port, maxRetries=RETRIES, **given)
    return found["answer"]["choices"][0]["message"]["content"], found["attempts"]


async def test_a_full_house_is_tried_again(node: Node, narrow: RunningStack, taken: None):
    """429 says when to come back; both clients come back then, and get their answers."""
    (text, attempts), (other, theirs) = await asyncio.gather(python(narrow), npm(node, narrow))
    assert text == other == "Now."
    assert attempts[-1] == (200, None)
    refused = [hint for status, hint in attempts[:-1] if status == 429]
    assert refused
    assert all(hint is not None and int(hint) >= 1 for hint in refused)
    check_waits(theirs, 429)


async def test_a_dead_worker_is_waited_for(node: Node, narrow: RunningStack):
    """503 while no worker serves: both clients try until there is one again."""
    narrow.wait_ready()
    pid = narrow.kill("decode-0")
    (text, attempts), (other, theirs) = await asyncio.gather(python(narrow), npm(node, narrow))
    narrow.wait_replaced("decode-0", pid)
    assert text == other == "Now."
    assert {status for status, _ in attempts[:-1]} <= {429, 502, 503}
    assert attempts[-1][0] == 200
    check_waits(theirs)


async def test_what_cannot_succeed_is_not_tried_again(node: Node, narrow: RunningStack):
    """A refusal of the request itself comes once, however many attempts a client has."""
    narrow.wait_ready()
    noted: list[httpx.Response] = []
    async with sdk(narrow.port, max_retries=RETRIES, noted=noted) as client:
        with pytest.raises(Exception, match="temperature"):
            await client.chat.completions.create(**body(), temperature=9)
    assert [one.status_code for one in noted] == [400]
    fields = {"temperature": 9}
    found = await asyncio.to_thread(
        node.run, "timeout", narrow.port, model=NAME, maxRetries=RETRIES, fields=fields
    )
    assert [one["status"] for one in found["attempts"]] == [400]


def check_waits(attempts: list[dict[str, Any]], status: int | None = None) -> None:
    """Check that each attempt came when the answer before it had said, and no sooner."""
    assert attempts[-1]["status"] == 200
    assert [one["count"] for one in attempts] == [str(n) for n in range(len(attempts))]
    if status is not None:
        assert status in {one["status"] for one in attempts}
    for before, after in itertools.pairwise(attempts):
        if before["retryAfter"] is not None:
            waited_s = (after["began"] - before["began"]) / 1000
            # Timers of node may fire a millisecond early.
            assert waited_s >= int(before["retryAfter"]) - 0.01
