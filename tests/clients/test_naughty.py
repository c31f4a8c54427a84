"""The strings that break things elsewhere, through every place that takes a text from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from libs.engine.script.settings import MARKERS
from tests.clients.told import idle, say
from tests.support.http_client import Exchange, Reply, chat_body, get
from tests.support.reference import needed
from tests.support.stack import RunningStack
from tests.support.words import NAME

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

AT_ONCE = 8
CHAT = "/v1/chat/completions"
HEADERS = ("x-request-id", "traceparent", "tracestate", "idempotency-key", "x-pdbus-mode")


@pytest.fixture(scope="module", params=[4, pytest.param(1, marks=pytest.mark.slow)])
def strings(request: pytest.FixtureRequest) -> list[str]:
    """Every fourth of the list; in the slow form all of it."""
    found: list[str] = json.loads(needed("blns.json").read_text(encoding="utf-8"))
    assert len(found) > 500
    return found[:: request.param]


async def ask(stack: RunningStack, path: str = CHAT, headers: Any = None, **body: Any) -> Reply:
    data = json.dumps(body).encode()
    exchange = await Exchange.open(stack.port, "POST", path, data, headers=headers)
    return await exchange.finish()


async def each(texts: Iterable[str], do: Callable[[str], Awaitable[None]]) -> None:
    """Do something with each text, a few at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(text: str) -> None:
        async with places:
            await do(text)

    async with asyncio.TaskGroup() as group:
        for text in texts:
            group.create_task(one(text))


def check_refused(reply: Reply, *statuses: int) -> None:
    """Check a refusal in our shape."""
    assert reply.status in statuses, reply
    assert set(reply.json["error"]) == {"message", "type", "param", "code"}


async def test_prompts_and_answers(stack: RunningStack, strings: list[str]):
    """Each string goes in as a prompt and comes back as the answer, to the last character."""

    async def told(text: str) -> None:
        body = chat_body(say(text), model=NAME, max_tokens=4000, stream=len(text) % 2 == 0)
        reply = await ask(stack, **body)
        assert (reply.status, reply.text) == (200, text), (text, reply)

    await each((text for text in strings if text and MARKERS[1] not in text), told)


async def test_systems_names_and_labels(stack: RunningStack, strings: list[str]):
    """System texts, names of speakers, users, metadata and stop strings are data, or refused."""

    async def given(text: str) -> None:
        message = {"role": "user", "content": "Hi", "name": text or None}
        messages = [{"role": "system", "content": text}, message]
        fields = {"user": text, "metadata": {text[:64]: text}, "stop": text or None}
        reply = await ask(stack, model=NAME, messages=messages, max_tokens=2, **fields)
        if reply.status != 200:
            check_refused(reply, 400)

    await each(strings, given)


async def test_model_names(stack: RunningStack, strings: list[str]):
    """A model that is not served is told so, whatever it is called, in bodies and paths."""

    async def named(text: str) -> None:
        check_refused(await ask(stack, **chat_body("Hi", model=text)), 400, 404)
        path = quote(text, safe="")
        check_refused(await get(stack.port, f"/v1/models/{path}"), 400, 404)

    await each(strings, named)


async def test_tool_names(stack: RunningStack, strings: list[str]):
    """A tool's name is one that models can write, or it is refused by its place."""

    async def named(text: str) -> None:
        tool = {"type": "function", "function": {"name": text, "description": text}}
        body = chat_body("Hi", model=NAME, max_tokens=2)
        reply = await ask(stack, **body, tools=[tool])
        if reply.status != 200:
            check_refused(reply, 400)
            assert reply.json["error"]["param"].startswith("tools[0].function")
        chosen = {"type": "function", "function": {"name": text}}
        check_refused(await ask(stack, **body, tools=[], tool_choice=chosen), 400)
        flat = {"type": "function", "name": text}
        reply = await ask(stack, "/v1/responses", model=NAME, input=text, tools=[flat])
        if reply.status != 200:
            check_refused(reply, 400)

    await each(strings, named)


async def test_headers(stack: RunningStack, strings: list[str]):
    """A header is used, or left aside, or refused; what comes back is plain ASCII."""
    body = chat_body("Hi", model=NAME, max_tokens=1)

    async def sent(text: str) -> None:
        # One more character would be a forged header, which is the client's own doing.
        value = text.translate({0: None, 10: None, 13: None})
        for name in HEADERS:
            reply = await ask(stack, headers={name: value}, **body)
            # A key belongs to one body, and each is the same.
            assert reply.status in {200, 400}, (name, text, reply)
            assert reply.headers.get("x-request-id", "").isascii()
            if reply.status != 200:
                check_refused(reply, 400)

    await each(strings[::3], sent)
    await idle(stack.port)


async def test_tokens_and_back(stack: RunningStack, strings: list[str]):
    """`/tokenize` and `/detokenize` lose nothing of any string."""

    async def both(text: str) -> None:
        asked = await ask(stack, "/tokenize", prompt=text, add_special_tokens=False)
        back = await ask(stack, "/detokenize", tokens=asked.json["tokens"])
        assert back.json["text"] == text

    await each(strings, both)


def test_the_log_is_still_one_line_an_event(stack: RunningStack):
    """After them, each line of the gateway's log is JSON."""
    log = Path(stack.slot("gateway-0").log).read_text(encoding="utf-8")
    lines = [line for line in log.split("\n") if line.startswith("{")]
    assert lines
    for line in lines:
        json.loads(line)
