"""`/tokenize` and `/detokenize`: the ids are those of the prompts that workers get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libs.text import ModelText
from libs.text.tokenizer import unpack_ids
from proto.openai.tokenize import DetokenizeRequest, TokenizeRequest
from services.gateway.api import ServedModel
from services.gateway.openai.fields import Stance
from services.gateway.openai.tokenize.fields import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from tests.unit.services.gateway.rig import CONTEXT, MODEL, Reply, Rig


async def ask(rig: Rig, path: str, **fields: Any) -> Reply:
    given = {"content-type": "application/json"}
    return await rig.visit("POST", path, json.dumps(fields).encode(), given).run()


async def test_a_text_and_its_tokens(rig: Rig):
    """A text becomes ids with their count and the model's context, and ids become the text."""
    reply = await ask(rig, "/tokenize", model=MODEL, prompt="Hé!")
    body = reply.json
    assert (body["model"], body["max_model_len"]) == (MODEL, CONTEXT)
    assert body["count"] == len(body["tokens"]) == 4
    back = await ask(rig, "/detokenize", model=MODEL, tokens=body["tokens"])
    assert back.json == {"model": MODEL, "text": "Hé!", "prompt": "Hé!"}


async def test_messages_have_the_prompt_of_chat(rig: Rig):
    """The ids of messages are those that a chat request with them is made of."""
    messages = [{"role": "user", "content": "Hi"}]
    reply = await ask(rig, "/tokenize", messages=messages)
    await rig.ask(messages=messages)
    assert reply.json["tokens"] == unpack_ids(rig.calls.opened[0].input_ids)
    assert len(rig.calls.opened) == 1


async def test_special_tokens_can_be_left_out(rig: Rig):
    """The text of the end is in the text, unless it is to be skipped."""
    end = (await ask(rig, "/tokenize", prompt="<|im_end|>")).json["tokens"]
    seen = (await ask(rig, "/detokenize", tokens=[*end, *end])).json["text"]
    skipped = (await ask(rig, "/detokenize", tokens=end, skip_special_tokens=True)).json["text"]
    assert seen
    assert len(skipped) <= len(seen)


async def test_long_texts_do_not_hold_up_the_loop(rig: Rig):
    """A text far longer than the context is counted, on a thread."""
    reply = await ask(rig, "/tokenize", prompt="x" * 50_000)
    assert reply.json["count"] == 50_000


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "king"}]}, "messages[0].role"),
        ("/tokenize", {"prompt": "x", "bogus": 1}, "bogus"),
        ("/tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [5, 2**32 - 1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [5, 1.5]}, "tokens[1]"),
    ],
)
async def test_faults_are_named(rig: Rig, path: str, fields: dict[str, Any], param: str):
    """What cannot be done is a 400 that names the field."""
    reply = await ask(rig, path, **fields)
    assert (reply.status, reply.error["param"]) == (400, param)


async def test_a_model_must_be_served(rig: Rig):
    """An unknown model is 404; one may be left out only while a single one is served."""
    reply = await ask(rig, "/tokenize", model="nope", prompt="x")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    rig.fleet.served = ()
    reply = await ask(rig, "/tokenize", prompt="x")
    assert (reply.status, reply.error["code"]) == (503, "no_worker")
    rig.fleet.served = (ServedModel(MODEL, 0), ServedModel(MODEL, 0))
    reply = await ask(rig, "/detokenize", tokens=[1])
    assert (reply.status, reply.error["param"]) == (400, "model")


def test_every_field_is_in_the_tables():
    """The tables and the types agree on what is carried out."""
    assert TOKENIZE_FIELDS.names(Stance.DONE) == set(TokenizeRequest.__struct_fields__)
    assert DETOKENIZE_FIELDS.names(Stance.DONE) == set(DetokenizeRequest.__struct_fields__)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.text(max_size=40))
def test_every_text_comes_back(toy: ModelText, text: str):
    """Tokens of a text without marks of the template say the same text again."""
    ids = toy.tokenizer.encode(text)
    assert toy.tokenizer.decode(ids) == text
