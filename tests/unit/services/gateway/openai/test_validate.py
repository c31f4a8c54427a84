"""Bad bodies are refused with the field at fault, in valid JSON, before anything is opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import ErrorCode, PdbusError
from proto.openai.chat import ChatRequest
from proto.workers import Feature
from services.gateway.api import ServedModel
from services.gateway.openai.chat import ChatApi
from services.gateway.openai.fields import CHAT_FIELDS, Stance
from tests.unit.services.gateway.rig import MODEL, Rig, chat_body, rules

BLNS = Path(__file__).parents[5] / ".." / "shared" / "traces" / "blns.json"
IMAGE = '{"image_url": {"url": "u"}, "type": "image_url"}'
USER = {"role": "user", "content": "Hi"}

CALL = '{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}'
TOOL = '{"type": "function", "function": {"name": "f"}}'
TOOL_OF = '{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}'
NAMED = '{"type": "function", "function": {"name": "other"}}'
PARAMETERS = "tools[0].function.parameters"

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def refusal(body: Any) -> PdbusError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(PdbusError) as caught:
        ChatApi().read(raw)
    return caught.value


def body_with(field: str) -> bytes:
    """Return a valid body with one more field, given as raw JSON."""
    return json.dumps(chat_body()).encode()[:-1] + b"," + field.encode() + b"}"


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ('"temperature": NaN', "temperature"),
        ('"temperature": Infinity', "temperature"),
        ('"temperature": -Infinity', "temperature"),
        ('"temperature": 1e999', "temperature"),
        ('"temperature": "nan"', "temperature"),
        ('"temperature": -1', "temperature"),
        ('"temperature": 2.01', "temperature"),
        ('"temperature": true', "temperature"),
        ('"temperature": []', "temperature"),
        ('"top_p": 0', "top_p"),
        ('"top_p": 1.5', "top_p"),
        ('"top_p": NaN', "top_p"),
        ('"frequency_penalty": -2.5', "frequency_penalty"),
        ('"presence_penalty": NaN', "presence_penalty"),
        ('"repetition_penalty": 0', "repetition_penalty"),
        ('"min_p": 2', "min_p"),
        ('"top_k": 0', "top_k"),
        ('"top_k": -2', "top_k"),
        ('"max_tokens": 0', "max_tokens"),
        ('"max_tokens": -5', "max_tokens"),
        ('"max_tokens": 1e12', "max_tokens"),
        ('"max_tokens": 1000000000000', "max_tokens"),
        ('"max_tokens": 99999999999999999999999', "max_tokens"),
        ('"max_tokens": 1.5', "max_tokens"),
        ('"max_tokens": "7"', "max_tokens"),
        ('"max_completion_tokens": 0', "max_completion_tokens"),
        ('"n": 0', "n"),
        ('"n": 129', "n"),
        ('"n": 1.5', "n"),
        ('"seed": 9223372036854775808', "seed"),
        ('"seed": -9223372036854775809', "seed"),
        ('"seed": 1.5', "seed"),
        ('"logit_bias": {"1": 101}', "logit_bias"),
        ('"logit_bias": {"1": "x"}', "logit_bias"),
        ('"logit_bias": {"99999999": 1}', "logit_bias"),
        ('"logit_bias": {"-1": 1}', "logit_bias"),
        ('"logit_bias": {"1.5": 1}', "logit_bias"),
        ('"logit_bias": {"\u0661": 1}', "logit_bias"),
        ('"logit_bias": {"1": NaN}', "logit_bias"),
        ('"logit_bias": [1]', "logit_bias"),
        ('"logprobs": 1', "logprobs"),
        ('"logprobs": true, "top_logprobs": 21', "top_logprobs"),
        ('"logprobs": true, "top_logprobs": -1', "top_logprobs"),
        ('"top_logprobs": 2', "top_logprobs"),
        ('"min_tokens": -1', "min_tokens"),
        ('"min_tokens": 9, "max_tokens": 8', "min_tokens"),
        ('"priority": 1', "priority"),
        ('"cache_salt": ""', "cache_salt"),
        ('"reasoning_effort": "most"', "reasoning_effort"),
        ('"chat_template_kwargs": {"messages": []}', "chat_template_kwargs"),
        ('"chat_template_kwargs": {"bos_token": "x"}', "chat_template_kwargs"),
        ('"chat_template_kwargs": []', "chat_template_kwargs"),
        ('"continue_final_message": true', "continue_final_message"),
        (
            '"continue_final_message": true, "add_generation_prompt": true',
            "continue_final_message",
        ),
        ('"tools": [{"type": "function"}]', "tools[0].function"),
        ('"tools": [{"type": "custom", "custom": {"name": "x"}}]', "tools[0].type"),
        ('"tools": [{"type": "function", "function": {"name": "a b"}}]', "tools[0].function.name"),
        ('"tools": [{"type": "function", "function": {"name": ""}}]', "tools[0].function.name"),
        (f'"tools": [{TOOL}, {TOOL}]', "tools[1].function.name"),
        (f'"tools": [{TOOL_OF}]'.replace("SCHEMA", '{"type": "nosuch"}'), PARAMETERS),
        (f'"tools": [{TOOL_OF}]'.replace("SCHEMA", '{"type": "array"}'), PARAMETERS),
        (f'"tools": [{TOOL_OF}]'.replace("SCHEMA", '{"$ref": "https://e.org/x"}'), PARAMETERS),
        (f'"tools": [{TOOL_OF}]'.replace("SCHEMA", "[]"), PARAMETERS),
        ('"tool_choice": "required"', "tool_choice"),
        ('"tool_choice": "any"', "tool_choice"),
        (f'"tools": [{TOOL}], "tool_choice": "must"', "tool_choice"),
        (
            f'"tools": [{TOOL}], "tool_choice": {NAMED}',
            "tool_choice",
        ),
        (f'"tools": [{TOOL}], "tool_choice": {{"type": "function"}}', "tool_choice"),
        (f'"tools": [{TOOL}], "response_format": {{"type": "json_object"}}', "response_format"),
        ('"response_format": {"type": "xml"}', "response_format"),
        ('"response_format": {"type": "json_schema"}', "response_format"),
        ('"response_format": {"type": "json_object", "json_schema": {}}', "response_format"),
        ('"response_format": {}', "response_format"),
        ('"response_format": {"type": "text", "x": 1}', "response_format"),
        ('"response_format": "json"', "response_format"),
        ('"response_format": {"type": "json_object"}, "regex": "a"', "regex"),
        ('"regex": "("', "regex"),
        ('"regex": ""', "regex"),
        ('"ebnf": "start: x"', "ebnf"),
        ('"json_schema": "{"', "json_schema"),
        ('"json_schema": 5', "json_schema"),
        ('"n": 10000', "n"),
        ('"stop": ["a", "b", "c", "d", "e"]', "stop"),
        ('"stop": [1]', "stop[0]"),
        ('"stop": ""', "stop"),
        ('"stop_token_ids": [-1]', "stop_token_ids[0]"),
        ('"stream": "yes"', "stream"),
        ('"stream_options": {"include_usage": true}', "stream_options"),
        ('"stream": false, "stream_options": {}', "stream_options"),
        ('"stream": true, "stream_options": {"include_usage": 1}', "stream_options.include_usage"),
        ('"messages": []', "messages"),
        ('"messages": null', "messages"),
        ('"messages": "Hi"', "messages"),
        ('"messages": [{"role": "wizard", "content": "Hi"}]', "messages[0].role"),
        ('"messages": [{"role": "user", "content": 5}]', "messages[0].content"),
        ('"messages": [{"role": "user", "content": null}]', "messages[0].content"),
        ('"messages": [{"role": "user"}]', "messages[0].content"),
        ('"messages": [{"role": "assistant", "tool_calls": []}]', "messages[0].content"),
        (
            '"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]',
            "messages[0].tool_calls",
        ),
        (
            '"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]',
            "messages[0].tool_calls[0].function",
        ),
        ('"messages": [{"role": "user", "content": NaN}]', "messages[0].content"),
        ('"messages": [{"role": "tool", "content": "x"}]', "messages[0].tool_call_id"),
        ('"messages": [{"role": "user", "content": "x", "name": ""}]', "messages[0].name"),
        ('"model": 5', "model"),
        ('"model": ""', "model"),
    ],
)
async def test_a_bad_value_is_named(rig: Rig, field: str, param: str):
    """Wrong types, ranges and numbers that are none: 400 with the field, and nothing opened."""
    rig.fleet.served = (ServedModel(MODEL, 0, features=frozenset(Feature)),)
    reply = await rig.ask(body_with(field.replace("CALL", CALL)))
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    missing = reply.error["message"].startswith("Missing")
    assert reply.error["code"] == ("invalid_request" if missing else "invalid_value")
    assert reply.error["param"] == param
    assert param in reply.error["message"]
    assert rig.calls.opened == []


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ('"logprobs": true', "logprobs"),
        ('"response_format": {"type": "json_object"}', "response_format"),
        ('"store": true', "store"),
        ('"service_tier": "free"', "service_tier"),
        ('"modalities": ["text", "audio"]', "modalities"),
        ('"functions": []', "functions"),
        ('"audio": {}', "audio"),
        ('"prediction": {}', "prediction"),
        ('"web_search_options": {}', "web_search_options"),
        ('"metadata": {"a": 1}', "metadata"),
        ('"user": 5', "user"),
        ('"regex": "a*"', "regex"),
        ('"ebnf": "root ::= x"', "ebnf"),
        ('"json_schema": {}', "json_schema"),
        (f'"tools": [{TOOL}]', "tools"),
        (f'"tools": [{TOOL}], "tool_choice": "required"', "tools"),
        ('"no_such_field": null', "no_such_field"),
        ('"Temperature": 1', "Temperature"),
        ('"": 1', ""),
        ('"stream": true, "stream_options": {"x": 1}', "stream_options.x"),
        ('"messages": [{"role": "user", "content": "x", "weight": 1}]', "messages[0].weight"),
        (
            '"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}]',
            "messages[0].content[1].type",
        ),
        (
            '"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]',
            "messages[0].content[0].type",
        ),
        (
            '"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "y": 1}]}]',
            "messages[0].content[0].y",
        ),
    ],
)
async def test_what_would_be_ignored_is_refused(rig: Rig, field: str, param: str):
    """Fields and values without effect are never accepted in silence."""
    reply = await rig.ask(body_with(field.replace("IMAGE", IMAGE)))
    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")
    assert reply.error["param"] == param
    assert rig.calls.opened == []


@pytest.mark.parametrize("name", sorted(CHAT_FIELDS.names(Stance.INTERNAL)))
@pytest.mark.parametrize("value", [None, 1, "x"])
def test_internal_fields_cannot_be_set(name: str, value: object):
    """What routes a request inside is refused from outside, even as null."""
    error = refusal(chat_body(**{name: value}))
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"nonsense", "not valid JSON"),
        (b'{"model": "m"} x', "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b"[]", "Expected object, got array"),
        (b'"text"', "Expected object, got str"),
        (b"null", "Expected object, got null"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
        (b"[" * 1_000_000, "nested deeper"),
        (b'{"messages":' + b'{"a":' * 50_000, "nested deeper"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(rig: Rig, body: bytes, text: str):
    """Broken JSON, other JSON and bottomless JSON get a 400 without a field."""
    rig.rules = rules(max_body_bytes=4 << 20)
    reply = await rig.ask(body)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert reply.error["param"] is None
    assert text in reply.error["message"]
    assert rig.calls.opened == []


@pytest.mark.parametrize("name", ["model", "messages"])
def test_a_missing_field_is_named(name: str):
    """Both required fields are asked for by name."""
    error = refusal(chat_body(**{name: ...}))
    assert (error.code, error.param) == (ErrorCode.INVALID_REQUEST, name)
    assert "Missing" in error.public_text


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "functions": None},
        {"response_format": {"type": "text"}, "logprobs": False, "logit_bias": {}, "n": 1},
        {"seed": None, "stop": None, "stop_token_ids": None, "stream_options": None},
        {"modalities": ["text"], "verbosity": "medium", "reasoning_effort": None},
        {"prompt_cache_key": "k", "safety_identifier": "s", "prompt_cache_retention": "in_memory"},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]):
    """Values that mean the default, and null, are taken."""
    assert ChatApi().read(json.dumps(chat_body(**fields)).encode()).model == "toy"


def test_a_value_must_have_the_right_type_to_be_neutral():
    """Zero is not false: a neutral value is compared with its type."""
    assert refusal(chat_body(store=0)).param == "store"
    assert refusal(chat_body(top_logprobs=False)).param == "top_logprobs"


def test_the_table_is_the_request():
    """The rows that are carried out are exactly the fields of the request type."""
    done = CHAT_FIELDS.names(Stance.DONE)
    assert done == set(ChatRequest.__struct_fields__)


def test_the_readme_has_the_table():
    """The field table of the README is the one of the code."""
    readme = Path(__file__).parents[5] / "services" / "gateway" / "README.md"
    assert CHAT_FIELDS.markdown() in readme.read_text(encoding="utf-8")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(CHAT_FIELDS.rows)), VALUES, max_size=4))
def test_no_body_is_a_bug(fields: dict[str, Any]):
    """Any values for known fields: a valid request, or an error with a client's status."""
    raw = json.dumps(chat_body(**fields)).encode()
    try:
        request = ChatApi().read(raw)
    except PdbusError as error:
        assert error.spec.http == 400  # noqa: PT017 - both outcomes are allowed
        msgspec.json.encode(error.public_text)
    else:
        assert 1 <= (request.n or 1) <= 128


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_are_a_bug(raw: bytes):
    """Any bytes at all are refused as a client's mistake."""
    assert refusal(raw).spec.http == 400


@pytest.mark.parametrize("place", ["content", "model", "name", "stop"])
def test_naughty_strings_are_text_or_refused(place: str):
    """Awkward strings pass unchanged where text is free, and are refused cleanly elsewhere."""
    if not BLNS.is_file():
        pytest.skip("the list of naughty strings is not beside this checkout")
    for text in json.loads(BLNS.read_text(encoding="utf-8")):
        fields: dict[str, Any] = {"messages": [USER]}
        match place:
            case "content" | "name":
                fields["messages"] = [USER | {place: text}]
            case _:
                fields[place] = text
        try:
            request = ChatApi().read(json.dumps(chat_body(**fields)).encode())
        except PdbusError as error:
            assert error.spec.http == 400  # noqa: PT017 - both outcomes are allowed
            continue
        message = request.messages[0]
        found = {"content": message.content, "name": message.name, "model": request.model}
        assert found.get(place, request.stop) == text
