"""API-*: what OpenAI's clients expect of the REST API, as other servers have got it wrong.

One pair that says what stands between the marks of a prompt, and answers others with plain words.
Every answer is checked against OpenAI's schemas as well, by the clients that read it.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from libs.engine.script.settings import MARKERS
from proto.ledger import RequestState
from tests.cases.adapter import (
    ANSWER_S,
    REFUSED_S,
    Processes,
    Product,
    Supervised,
    body_of,
    chunks,
)
from tests.support.checked.sdk import sdk
from tests.support.http_client import Exchange, Reply, get, post
from tests.support.reference import needed
from tests.support.stack import RunningStack, run_stack
from tests.support.words import NAME, Oracle

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(60),
    pytest.mark.asyncio(loop_scope="module"),
]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTEXT = 8192
DEADLINE_S = 5
"""Most time for an answer in this stack."""
STEP_S = 0.05
"""Time that each token of a slow answer takes."""
HARD = (
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 漢字 e\u0301\u0323 ǆ "
    "\U0001f1e9\U0001f1ea \u00ad ok\U0001f3fd"
)
"""Emoji, a family of them joined, CJK, combining marks, flags."""

SCRIPT = {
    "answer": "say",
    "faults": [
        {"when": "decode", "action": "slow", "seconds": STEP_S, "text": "slow answer"},
        {"when": "decode", "action": "error", "text": "break in decode", "after_tokens": 5},
        {"when": "decode", "action": "stall", "text": "stall in decode", "after_tokens": 5},
    ],
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "get_time")
]
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {"zone": "CET"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def stack(words: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run one pair."""
    env = {
        "PDBUS_GATEWAY_REQUEST_TIMEOUT_S": str(DEADLINE_S),
        "PDBUS_PREFILL_SCRIPT": json.dumps({"answer": "say"}),
        "PDBUS_DECODE_SCRIPT": json.dumps(SCRIPT),
    }
    options = (f"--model={words}", "--tool-parser=qwen25", "--reasoning-parser=qwen3")
    with run_stack(tmp_path_factory.mktemp("stack"), *options, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def processes(stack: RunningStack) -> Processes:
    """All processes."""
    return Supervised(stack)


@pytest.fixture
def alive(stack: RunningStack) -> None:
    """All processes run again."""
    stack.wait_ready(30)


def say(text: str) -> str:
    """Return a prompt that makes the model say a text."""
    return f"Say {MARKERS[0]}{text}{MARKERS[1]}"


async def send(product: Product, body: Any, path: str = CHAT, **headers: str) -> Reply:
    """Send a body, JSON or bytes, and return the whole reply."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    exchange = await Exchange.open(product.port, "POST", path, data, headers=headers)
    return await exchange.finish()


def told(text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a request whose answer is a text, and then ends."""
    return body_of(say(text), 600, ignore_eos=False, **fields)


def choices(reply: Reply) -> dict[int, list[dict[str, Any]]]:
    """Return the deltas of each choice of a stream."""
    found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in reply.events[:-1]:
        for choice in event["choices"]:
            found[choice["index"]].append(choice)
    return dict(found)


def texts(reply: Reply) -> list[str]:
    """Return the text of each choice, streamed or not."""
    if reply.is_stream:
        parts = choices(reply)
        pieces = [
            [d.get("text") or d.get("delta", {}).get("content") or "" for d in parts[index]]
            for index in sorted(parts)
        ]
        return ["".join(one) for one in pieces]
    found = sorted(reply.json["choices"], key=lambda choice: choice["index"])
    return [one["text"] if "text" in one else one["message"]["content"] for one in found]


def usage(reply: Reply) -> dict[str, Any]:
    """Return the usage; of a stream that was asked for it."""
    return reply.events[-2]["usage"] if reply.is_stream else reply.json["usage"]


async def test_usage_comes_when_asked_for(product: Product) -> None:
    """API-01: one usage chunk before [DONE] if asked for, none else; it adds up as a whole's."""
    body = body_of("Hello", 6)
    plain = await send(product, body)
    refused = await send(product, body | {"stream_options": {"include_usage": False}})
    for reply in (plain, refused):
        assert reply.events[-1] == "[DONE]"
        assert all(event["choices"] and "usage" not in event for event in reply.events[:-1])
    wanted = await send(product, body | {"stream_options": {"include_usage": True}})
    *before, last = wanted.events[:-1]
    assert last["choices"] == []
    assert all(event["choices"] and event["usage"] is None for event in before)
    assert before[-1]["choices"][0]["finish_reason"]
    whole = await send(product, body | {"stream": False})
    assert last["usage"]["completion_tokens"] == usage(whole)["completion_tokens"] == 6
    for counted in (last["usage"], usage(whole)):
        total = counted["prompt_tokens"] + counted["completion_tokens"]
        assert counted["total_tokens"] == total
    bad = await send(product, body | {"stream": False, "stream_options": {"include_usage": True}})
    assert (bad.status, bad.error and bad.error["param"]) == (400, "stream_options")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("way", ["end", "stop", "limit"])
async def test_each_choice_finishes_once(product: Product, n: int, way: str) -> None:
    """API-02: `finish_reason` is null until a choice ends, then one of the enum, once."""
    body = {
        "end": told("One. Two.", n=n),
        "stop": told("One. Two.", n=n, stop=["Two"]),
        "limit": body_of("Hello", 4, n=n),
    }[way]
    reply = await send(product, body)
    assert reply.body.endswith(b"data: [DONE]\n\n")
    found = choices(reply)
    assert sorted(found) == list(range(n))
    for deltas in found.values():
        reasons = [delta["finish_reason"] for delta in deltas]
        assert reasons == [None] * (len(deltas) - 1) + ["length" if way == "limit" else "stop"]
        assert deltas[0]["delta"]["role"] == "assistant"
        assert all("role" not in delta["delta"] for delta in deltas[1:])
    heads = {(e["id"], e["model"], e["created"], e["object"]) for e in reply.events[:-1]}
    assert len(heads) == 1
    assert heads.pop()[3] == "chat.completion.chunk"


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_are_told_apart(product: Product, stream: bool) -> None:
    """API-03: each choice has its own index and text; prompts are counted once each."""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    three = await send(product, told("All of it.", n=3, temperature=1, stream=stream, **options))
    assert texts(three) == ["All of it."] * 3
    one = await send(product, told("All of it.", temperature=1, stream=stream, **options))
    assert usage(three)["prompt_tokens"] == usage(one)["prompt_tokens"]
    assert usage(three)["completion_tokens"] == 3 * usage(one)["completion_tokens"]
    prompts = [say("First."), say("Second one.")]
    body = {"model": NAME, "max_tokens": 100, "temperature": 1, "stream": stream} | options
    four = await send(product, body | {"prompt": prompts, "n": 2}, TEXT)
    assert texts(four) == ["First.", "First.", "Second one.", "Second one."]
    alone = [await send(product, body | {"prompt": prompt}, TEXT) for prompt in prompts]
    for key, times in (("prompt_tokens", 1), ("completion_tokens", 2)):
        assert usage(four)[key] == times * sum(usage(reply)[key] for reply in alone)


@pytest.mark.parametrize("several", [False, True])
async def test_no_part_of_a_stop_string_is_shown(product: Product, several: bool) -> None:
    """API-04: a stop string that begins inside a token and spans several is cut away whole."""
    text = (await product.ask("Hello", 24)).text
    words = text.split(" ")
    stop = f"{words[8][1:]} {words[9]} {words[10][:2]}"
    right = text[: text.index(stop)]
    stops = [stop, stop[:5], "\x00", "never said"] if several else stop
    if several:
        right = text[: min(text.index(one) for one in stops if one in text)]
    for stream in (False, True):
        reply = await product.ask("Hello", 24, stop=stops, stream=stream)
        assert texts(reply) == [right]
        assert reply.finish_reason == "stop"


@pytest.mark.parametrize("limit", [None, *range(1, 12)])
async def test_characters_come_whole(product: Product, limit: int | None) -> None:
    """API-06: characters of several tokens are never split; only a cut may leave a mark behind."""
    body = told(HARD) | ({"max_tokens": limit} if limit else {})
    streamed = await send(product, body)
    whole = await send(product, body | {"stream": False})
    for frame in streamed.body.split(b"\n\n"):
        frame.decode("utf-8", errors="strict")
    (text,) = texts(streamed)
    assert [text] == texts(whole)
    assert "�" not in text[:-1]
    if limit is None:
        assert text == HARD
    else:
        assert HARD.startswith(text.removesuffix("�"))


async def test_each_token_has_its_own_log_probabilities(product: Product) -> None:
    """API-07: the stream's entries are those of the whole answer, one a token, the first too."""
    body = body_of("Hello", 12, logprobs=True, top_logprobs=3)
    streamed = await send(product, body | {"stream_options": {"include_usage": True}})
    whole = await send(product, body | {"stream": False})
    deltas = choices(streamed)[0]
    found = [entry for d in deltas if d["logprobs"] for entry in d["logprobs"]["content"]]
    right = whole.json["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in found] == [one["token"] for one in right]
    for one, other in zip(found, right, strict=True):
        assert abs(one["logprob"] - other["logprob"]) < 1e-3
        assert one["top_logprobs"] == other["top_logprobs"]
        assert len(one["top_logprobs"]) == 3
    assert len(found) == usage(streamed)["completion_tokens"] == usage(whole)["completion_tokens"]
    assert "".join(one["token"] for one in found) == texts(whole)[0]
    assert len({json.dumps(one["top_logprobs"]) for one in found}) > 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_is_refused(
    product: Product, oracle: Oracle, stream: bool
) -> None:
    """API-09: 400 with both numbers before any event; no worker hears of it; then all is well."""
    around = len(oracle.prompt(""))
    async with product.starts() as starts:
        for length, tokens in ((CONTEXT + 1, 1), (CONTEXT - 10, 100)):
            reply = await product.ask("x" * (length - around), tokens, stream=stream)
            error = reply.error or {}
            assert (reply.status, error.get("code")) == (400, "context_length_exceeded")
            assert error["type"] == "invalid_request_error"
            assert str(CONTEXT) in error["message"]
            assert str(length) in error["message"]
            assert reply.seconds < ANSWER_S
    assert starts == []
    assert product.accepted() == set()
    assert (await product.ask("Hello", 4, stream=stream)).claims_completeness


@pytest.mark.parametrize("stream", [False, True])
async def test_every_error_has_the_one_shape(product: Product, stream: bool) -> None:
    """API-10: bad calls get their status and a nested error of four keys, without our insides."""
    good = body_of("Hello", 4, stream=stream)
    bad: list[tuple[str, Any, int]] = [
        (CHAT, b'{"model": ', 400),
        (CHAT, b"", 400),
        (CHAT, {key: value for key, value in good.items() if key != "messages"}, 400),
        (CHAT, good | {"messages": []}, 400),
        (CHAT, good | {"messages": [{"role": "king", "content": "x"}]}, 400),
        (CHAT, good | {"model": "nope"}, 404),
        (CHAT, good | {"temperature": "hot"}, 400),
        ("/v1/nowhere", good, 404),
        ("/v1/models", good, 405),
    ]
    replies = [(await send(product, body, path), status) for path, body, status in bad]
    kind = await Exchange.open(
        product.port, "POST", CHAT, json.dumps(good).encode(), kind="text/plain"
    )
    replies += [(await kind.finish(), 415), (await get(product.port, CHAT), 405)]
    for reply, status in replies:
        assert reply.status == status, reply
        assert reply.headers["content-type"] == "application/json"
        error = reply.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str)
        assert error["message"]
        assert not any(word in error["message"] for word in ("Traceback", ".py", "127.0.0.1"))
    async with sdk(product.port) as client:
        for fields, raised in (
            ({"messages": []}, openai.BadRequestError),
            ({"temperature": 9}, openai.BadRequestError),
            ({"model": "nope"}, openai.NotFoundError),
        ):
            asked = {"model": NAME, "messages": good["messages"], "stream": stream} | fields
            with pytest.raises(raised) as caught:
                await client.chat.completions.create(**asked)
            assert caught.value.body["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_name_of_the_limit_is_heeded(product: Product, stream: bool) -> None:
    """API-11: either name limits the answer, the newer one first, on both endpoints."""
    chat = body_of("Hello", 7, stream=stream, stream_options=None)
    bare = {key: value for key, value in chat.items() if key != "max_tokens"}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    cases = [
        (CHAT, bare | {"max_completion_tokens": 7}),
        (CHAT, bare | {"max_tokens": 7}),
        (CHAT, bare | {"max_completion_tokens": 7, "max_tokens": 50}),
    ]
    prompt = {"model": NAME, "prompt": "Hello", "ignore_eos": True, "stream": stream}
    cases += [
        (TEXT, prompt | {"max_tokens": 7}),
        (TEXT, prompt | {"max_completion_tokens": 7}),
    ]
    for path, body in cases:
        reply = await send(product, body | options, path)
        assert (reply.finish_reason, usage(reply)["completion_tokens"]) == ("length", 7), reply
    free = await send(product, told("Just this.", stream=stream) | {"max_tokens": None} | options)
    assert (free.finish_reason, texts(free)) == ("stop", ["Just this."])


async def test_text_in_parts_is_the_text(product: Product) -> None:
    """API-13: a dialogue in parts has the prompt and the answer of the same one in strings."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello you"},
        {"role": "assistant", "content": "Yes?", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        {"role": "user", "content": "Go on"},
    ]

    def parted(turn: dict[str, Any], *cuts: str) -> dict[str, Any]:
        pieces = cuts or (turn["content"],)
        return turn | {"content": [{"type": "text", "text": piece} for piece in pieces]}

    plain = body_of("", 8, stream=False) | {"messages": turns}
    in_parts = plain | {"messages": [parted(turn) for turn in turns]}
    two = [
        parted(turn, "Hello ", "you") if turn["content"] == "Hello you" else turn for turn in turns
    ]
    replies = [await send(product, body) for body in (plain, in_parts, plain | {"messages": two})]
    assert len({usage(reply)["prompt_tokens"] for reply in replies}) == 1
    assert len({texts(reply)[0] for reply in replies}) == 1
    image = {"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}
    mixed = [*turns, {"role": "user", "content": [{"type": "text", "text": "x"}, image]}]
    reply = await send(product, plain | {"messages": mixed})
    assert reply.status == 400
    assert reply.error is not None
    assert reply.error["param"] == "messages[5].content[1].type"


async def test_tool_calls_are_streamed_in_pieces(product: Product) -> None:
    """API-15: a call names itself once, has its own index, and its arguments join to JSON."""
    body = told(CALLS, tools=TOOLS)
    streamed = await send(product, body)
    deltas = choices(streamed)[0]
    seen: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for piece in delta["delta"].get("tool_calls", ()):
            call = seen.get(piece["index"])
            if call is None:
                assert piece["type"] == "function"
                name = piece["function"]["name"]
                seen[piece["index"]] = {"id": piece["id"], "name": name, "arguments": ""}
            else:
                assert set(piece) == {"index", "function"}
                assert set(piece["function"]) == {"arguments"}
            assert isinstance(piece["function"]["arguments"], str)
            seen[piece["index"]]["arguments"] += piece["function"]["arguments"]
    assert sorted(seen) == [0, 1]
    assert len({call["id"] for call in seen.values()}) == 2
    found = [(call["name"], json.loads(call["arguments"])) for call in seen.values()]
    assert found == [("get_weather", {"city": "Paris"}), ("get_time", {"zone": "CET"})]
    assert [d["finish_reason"] for d in deltas if d["finish_reason"]] == ["tool_calls"]
    whole = (await send(product, body | {"stream": False})).json["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    calls = [call["function"] for call in whole["message"]["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == found
    async with sdk(product.port) as client:
        extra = {"ignore_eos": body.pop("ignore_eos")}
        stream = await client.chat.completions.create(**body, extra_body=extra)
        told_by_client = [chunk async for chunk in stream]
    assert told_by_client[-1].choices[0].finish_reason == "tool_calls"


def forms() -> Iterator[dict[str, Any]]:
    """Yield formats that cannot be held to: broken, unknown, or of a schema that is too much."""
    for schema in (
        {"type": "nosuch"},
        {"type": "string", "pattern": "(["},
        {"$ref": "#/$defs/node", "$defs": {"node": {"$ref": "#/$defs/node"}}},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}},
        {"type": "object", "properties": 7},
        [],
    ):
        yield {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    yield {"type": "json_object"}
    yield {"type": "yaml"}
    yield {"type": "json_schema"}
    for file in sorted(needed("jsonschema").glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": group["schema"]},
            }


async def test_no_schema_harms_anybody(product: Product) -> None:
    """API-17: where workers have no grammars, each schema is a 400 that says so, never ignored."""
    before = {name: product.processes.pid(name) for name in product.processes.names}
    async with product.starts() as starts:
        for form in forms():
            body = body_of("Hello", 4, stream=False, response_format=form)
            reply = await send(product, body)
            assert reply.status == 400, (form, reply)
            assert reply.error is not None
            assert reply.error["param"].startswith("response_format"), (form, reply.error)
            assert reply.seconds < 2
    assert starts == []
    assert {name: product.processes.pid(name) for name in product.processes.names} == before
    assert (await product.ask("Hello", 4)).claims_completeness


OUT_OF_RANGE = [
    *(
        (f'"{name}": {value}', name)
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")
        for value in ("NaN", "Infinity", "-Infinity", "1e999", '"nan"', "-3")
    ),
    ('"top_p": 0', "top_p"),
    *((f'"max_tokens": {value}', "max_tokens") for value in ("0", "-5", "1e12")),
    *((f'"n": {value}', "n") for value in ("0", "10000")),
    ('"logprobs": true, "top_logprobs": 21', "top_logprobs"),
    ('"seed": 9223372036854775808', "seed"),
    ('"logit_bias": {"999999": 1}', "logit_bias"),
    ('"logit_bias": {"5": NaN}', "logit_bias"),
    ('"logit_bias": {"5": 101}', "logit_bias"),
]


async def test_numbers_out_of_range_reach_nobody(product: Product) -> None:
    """API-19: numbers that are none or too large are 400, named, in valid JSON, and not sent on."""
    start = b'{"model": "words", "messages": [{"role": "user", "content": "x"}], '
    async with product.starts() as starts:
        for field, param in OUT_OF_RANGE:
            reply = await post(product.port, start + field.encode() + b"}", timeout_s=REFUSED_S)
            assert reply.status == 400, (field, reply)
            error = json.loads(reply.body, parse_constant=pytest.fail)["error"]
            assert error["type"] == "invalid_request_error"
            assert (error["param"] or "").startswith(param), (field, error)
    assert starts == []
    assert product.accepted() == set()
    assert (await product.ask("Hello", 4)).claims_completeness


@pytest.mark.parametrize("way", ["killed", "broken", "late"])
async def test_what_broke_off_is_no_answer(product: Product, stack: RunningStack, way: str) -> None:
    """API-20: a stream that breaks has one error, no finish and a clean end; a whole is a 5xx."""
    text = {"killed": "slow answer", "broken": "break in decode", "late": "stall in decode"}[way]
    whole = asyncio.ensure_future(product.ask(text, 150, stream=False))
    client = asyncio.ensure_future(raised(product.port, text))
    exchange = await product.open(text, 150)
    await chunks(exchange, 4)
    pid = stack.kill("decode-0") if way == "killed" else None
    reply = await exchange.finish()
    assert reply.whole
    errors = [event for event in reply.events if "error" in event]
    assert errors == reply.events[-1:]
    assert {"message", "type", "code"} <= set(errors[0]["error"])
    assert reply.finish_reason is None
    said, error = await client
    assert said
    assert error.code == errors[0]["error"]["code"]
    answered = await whole
    assert answered.status in {500, 502, 504}
    code = {"killed": "decode_lost", "broken": "engine_error", "late": "deadline"}[way]
    assert error.code == code
    # By name: a gateway that has lost its only decode asks a question of its own later.
    states = await product.ended({reply.rid, answered.rid})
    assert states == {RequestState.FAILED: 2}
    if pid is not None:
        # Those who come after it find the whole stack, warm again.
        await asyncio.to_thread(stack.wait_replaced, "decode-0", pid)
        async with asyncio.timeout(30):
            while not (await product.ask("Hello", 2, stream=False)).claims_completeness:
                await asyncio.sleep(0.1)


async def raised(port: int, text: str) -> tuple[str, openai.APIError]:
    """Read a stream that breaks with the official client; return text and error."""
    body = body_of(text, 150)
    extra = {"ignore_eos": body.pop("ignore_eos")}
    said = ""
    async with sdk(port) as client:
        try:
            async for chunk in await client.chat.completions.create(**body, extra_body=extra):
                said += chunk.choices[0].delta.content or ""
        except openai.APIError as error:
            return said, error
    raise AssertionError("the stream ended as if it were whole")


async def test_one_name_for_many_requests(product: Product) -> None:
    """API-21: requests that share `x-request-id` and trace keep their own ids and answers."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    before = {name: product.processes.pid(name) for name in product.processes.names}

    async def ask(number: int) -> Reply:
        headers = {"x-request-id": "the same", "traceparent": trace}
        return await send(product, told(f"canary {number}."), **headers)

    rounds = [await asyncio.gather(*(ask(n) for n in range(many))) for many in (2, 20, 1)]
    ids: list[str] = []
    for replies in rounds:
        for number, reply in enumerate(replies):
            assert (reply.status, reply.text) == (200, f"canary {number}.")
            assert reply.headers["x-request-id"] == "the same"
            ids.append(reply.events[0]["id"])
    assert len(set(ids)) == len(ids) == 23
    assert {name: product.processes.pid(name) for name in product.processes.names} == before
