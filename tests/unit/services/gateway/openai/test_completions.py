"""The completions endpoint: prompts of all kinds, several at a time, in the older words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from libs.text.tokenizer import unpack_ids
from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ledger import Usage
from proto.openai.completions import CompletionRequest
from proto.output import Details, TokenLogprob
from services.gateway.api import Delta, ServedModel
from services.gateway.openai.fields import COMPLETION_FIELDS, Stance
from tests.support.checked import spec
from tests.support.reference import needed
from tests.unit.services.gateway.rig import (
    ABLE,
    CONTEXT,
    MODEL,
    Rig,
    ScriptedLive,
    deltas,
    then_fail,
    words,
)

ID = b"\0\0\0\0"


def says_its_prompt(rig: Rig) -> Any:
    """Each choice says its prompt, a letter a token, and then which choice it is."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        prompt = rig.text.tokenizer.decode(live.call.input_ids)
        number = [call.rid for call in rig.calls.opened].index(live.call.rid)
        for letter in f"{prompt}{number}":
            await asyncio.sleep(0)
            yield Delta(ID, letter)
        tokens = len(prompt) + 1
        usage = Usage(prompt_tokens=live.call.prompt_tokens, completion_tokens=tokens)
        yield Delta(b"", "", FinishReason.STOP, usage)

    return script


async def test_a_whole_answer(rig: Rig):
    """One JSON object with text, finish and usage; the prompt is encoded as it is."""
    reply = await rig.complete(prompt="Once")
    assert reply.status == 200
    body = reply.json
    call = rig.calls.opened[0]
    assert (body["object"], body["id"]) == ("text_completion", f"cmpl-{call.rid}")
    assert body["choices"] == [
        {"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"]["total_tokens"] == call.prompt_tokens + 2
    assert rig.text.tokenizer.decode(call.input_ids) == "Once"
    assert call.sampling.max_tokens == 16


async def test_a_stream(rig: Rig):
    """Text chunks, one finish with empty text, usage where asked for, `[DONE]`."""
    options = {"include_usage": True}
    *chunks, last, done = (await rig.complete(stream=True, stream_options=options)).events
    assert done == "[DONE]"
    assert [c["choices"][0]["text"] for c in chunks] == ["Hello", " world", ""]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, "stop"]
    assert all(c["usage"] is None and c["object"] == "text_completion" for c in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2
    assert len({c["id"] for c in [*chunks, last]}) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_prompts_times_choices(rig: Rig, stream: bool):
    """Two prompts and two choices of each: four, those of the first prompt first."""
    rig.calls.script = says_its_prompt(rig)
    options = {"stream_options": {"include_usage": True}} if stream else {}
    reply = await rig.complete(prompt=["ab", "c"], n=2, stream=stream, **options)
    if stream:
        *chunks, last, _ = reply.events
        texts = [""] * 4
        for chunk in chunks:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        finishes = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
        assert sorted(finishes) == [0, 1, 2, 3]
        usage = last["usage"]
    else:
        assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2, 3]
        texts = [choice["text"] for choice in reply.json["choices"]]
        usage = reply.json["usage"]
    assert texts == ["ab0", "ab1", "c2", "c3"]
    assert usage["prompt_tokens"] == 3
    assert usage["completion_tokens"] == 3 + 3 + 2 + 2


async def test_prompts_of_ids(rig: Rig):
    """Ids are taken as they are, for one prompt or several."""
    await rig.complete(prompt=[5, 6, 7])
    await rig.complete(prompt=[[5, 6], [7]])
    found = [unpack_ids(call.input_ids) for call in rig.calls.opened]
    assert found == [[5, 6, 7], [5, 6], [7]]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_prompt_can_be_echoed(rig: Rig, stream: bool):
    """With `echo` each choice begins with its prompt, as text or decoded from ids."""
    for prompt in ("One. ", unpack_ids(rig.text.tokenizer.encode("One. "))):
        reply = await rig.complete(prompt=prompt, echo=True, n=2, stream=stream)
        texts = ["", ""]
        if stream:
            for chunk in reply.events[:-1]:
                texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        else:
            texts = [choice["text"] for choice in reply.json["choices"]]
        assert texts == ["One. Hello world"] * 2


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_in_four_lists(rig: Rig, stream: bool):
    """Tokens, logprobs, alternatives and offsets are as long as the answer has tokens."""
    rig.fleet.served = (ABLE,)
    a, e1, e2, b = unpack_ids(rig.text.tokenizer.encode("aéb"))
    end = rig.text.eos_ids[0]

    def entry(token: int, logprob: float, *top: tuple[int, float]) -> TokenLogprob:
        return TokenLogprob(token=token, logprob=logprob, top=top)

    rig.calls.script = deltas(
        Delta(ID, "a", details=Details(logprobs=(entry(a, -0.5, (b, -0.25)),))),
        Delta(ID, "", details=Details(logprobs=(entry(e1, -1.0, (e1, -1.0)),))),
        Delta(
            ID * 2,
            "éb",
            details=Details(logprobs=(entry(e2, -1.5, (e2, -1.5)), entry(b, -2.0, (b, -2.0)))),
        ),
        Delta(ID, "", details=Details(logprobs=(entry(end, -3.0, (end, -3.0)),))),
    )
    reply = await rig.complete(logprobs=1, stream=stream)
    if stream:
        parts = [c["choices"][0]["logprobs"] for c in reply.events[:-1]]
        told: dict[str, list[Any]] = {}
        for part in filter(None, parts):
            for key, values in part.items():
                told.setdefault(key, []).extend(values)
    else:
        told = reply.json["choices"][0]["logprobs"]
    assert told["tokens"] == ["a", "\\xc3", "\\xa9", "b", "<|im_end|>"]
    assert told["token_logprobs"] == [-0.5, -1.0, -1.5, -2.0, -3.0]
    assert told["text_offset"] == [0, 1, 1, 2, 3]
    assert told["top_logprobs"][0] == {"b": -0.25, "a": -0.5}
    assert rig.calls.opened[0].sampling.logprobs == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [""]}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_value"),
        ({"prompt": [1.5]}, "prompt[0]", "invalid_value"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": [99999999]}, "prompt", "invalid_value"),
        ({"prompt": [[1], [99999999]]}, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt", "invalid_value"),
        ({"prompt": "x" * 300}, "prompt", "context_length_exceeded"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 999}, "prompt", "context_length_exceeded"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_value"),
        ({"logprobs": 1, "echo": True}, "echo", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"best_of": 3, "n": 2}, "best_of", "unsupported_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"bootstrap_room": 1}, "bootstrap_room", "unsupported_parameter"),
        ({"nonsense": 1}, "nonsense", "unsupported_parameter"),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
    ],
)
async def test_what_is_wrong_is_named(rig: Rig, fields: dict[str, Any], param: str, code: str):
    """A field that cannot be carried out is a 400 with its name, and nothing is opened."""
    rig.fleet.served = (ABLE,)
    reply = await rig.complete(**fields)
    assert (reply.status, reply.error["code"]) == (400, code)
    assert reply.error["param"] == param
    assert rig.calls.opened == []


async def test_both_limits_are_honoured(rig: Rig):
    """`max_tokens` limits, and so does the newer name, which wins."""
    for fields in ({"max_tokens": 7}, {"max_completion_tokens": 7, "max_tokens": 9}):
        await rig.complete(**fields)
    assert [call.sampling.max_tokens for call in rig.calls.opened] == [7, 7]


async def test_neutral_values_are_taken(rig: Rig):
    """`best_of` equal to `n`, no suffix, and null everywhere are fine."""
    reply = await rig.complete(n=2, best_of=2, suffix=None, logprobs=None, echo=False, user="u")
    assert reply.status == 200
    assert len(reply.json["choices"]) == 2


async def test_guides_work_here_too(rig: Rig):
    """A completion can be made to match, where the workers can do so."""
    assert (await rig.complete(regex="a+")).error["param"] == "regex"
    rig.fleet.served = (ABLE,)
    await rig.complete(response_format={"type": "json_object"})
    guide = rig.calls.opened[0].sampling.guide
    assert guide is not None
    assert json.loads(guide.text) == {"type": "object"}


async def test_the_context_is_that_of_each_prompt(rig: Rig):
    """Prompts do not add up: each has the context for itself."""
    half = "x" * (CONTEXT // 2)
    assert (await rig.complete(prompt=[half, half, half], max_tokens=9)).status == 200
    rig.fleet.served = (ServedModel(MODEL, 50),)
    reply = await rig.complete(prompt=["x", half])
    assert reply.error["code"] == "context_length_exceeded"


async def test_a_failure_in_mid_stream_is_an_event(rig: Rig):
    """All text that came is given, then one error event; no finish and no `[DONE]`."""
    rig.calls.script = then_fail(PdbusError(ErrorCode.DECODE_LOST), "Hello")
    *chunks, error = (await rig.complete(stream=True)).events
    assert [c["choices"][0]["text"] for c in chunks] == ["Hello"]
    assert error["error"]["code"] == "decode_lost"


async def test_answers_fit_the_schema_of_openai(rig: Rig):
    """Whole answers and chunks validate against the public schema."""
    needed("openai_openapi.yaml")
    rig.fleet.served = (ABLE,)
    rig.calls.script = words("a", finish=FinishReason.LENGTH)
    spec.validator("CreateCompletionResponse").validate((await rig.complete()).json)
    for chunk in (await rig.complete(stream=True)).events[:-1]:
        spec.validator(spec.TEXT_CHUNK).validate(chunk)


def test_the_table_is_the_request():
    """The rows that are carried out are exactly the fields of the request type."""
    assert COMPLETION_FIELDS.names(Stance.DONE) == set(CompletionRequest.__struct_fields__)
