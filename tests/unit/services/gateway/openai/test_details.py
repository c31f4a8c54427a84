"""Tool calls, reasoning and log-probabilities: the same content streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.output import CallDelta, Details, Parsing, TokenLogprob
from proto.sampling import GuideKind
from proto.workers import Feature
from services.gateway.api import Delta, ServedModel
from tests.support.checked import spec
from tests.support.reference import needed
from tests.unit.services.gateway.rig import ABLE, MODEL, Rig, deltas, then_fail

ID = b"\0\0\0\0"
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "time", "description": "What time it is."}},
]


@pytest.fixture
def able(rig: Rig) -> Rig:
    """A rig whose workers can do everything."""
    rig.fleet.served = (ABLE,)
    return rig


def detailed(text: str = "", **details: Any) -> Delta:
    tokens = len(details.get("logprobs", ())) or 1
    return Delta(ID * tokens, text, details=Details(**details))


TWO_CALLS = (
    Delta(ID, "Let me see. "),
    detailed(calls=(CallDelta(index=0, id="call_a", name="weather"),)),
    detailed(calls=(CallDelta(index=0, arguments='{"city": '),)),
    detailed(
        calls=(
            CallDelta(index=0, arguments='"Oslo"}'),
            CallDelta(index=1, id="call_b", name="time", arguments="{"),
        )
    ),
    detailed(calls=(CallDelta(index=1, arguments="}"),)),
)


def gathered(chunks: list[Any]) -> dict[str, Any]:
    """Put the deltas of one choice together, as clients do."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": {}}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key, "")
            for piece in delta.get("tool_calls", ()):
                call = message["tool_calls"].setdefault(piece["index"], {"arguments": ""})
                call |= {k: piece[k] for k in ("id", "type") if k in piece}
                call |= {"name": piece["function"]["name"]} if "name" in piece["function"] else {}
                call["arguments"] += piece["function"]["arguments"]
    return message


async def test_streamed_calls_name_themselves_once(able: Rig):
    """The first delta of a call has id, type and name; later ones its index and arguments only."""
    able.calls.script = deltas(*TWO_CALLS, finish=FinishReason.TOOL_CALLS)
    *chunks, done = (await able.ask(tools=TOOLS, stream=True)).events
    assert done == "[DONE]"
    pieces = [p for c in chunks for p in c["choices"][0]["delta"].get("tool_calls", ())]
    for index, (call, name) in enumerate((("call_a", "weather"), ("call_b", "time"))):
        first, *rest = (piece for piece in pieces if piece["index"] == index)
        assert (first["id"], first["type"], first["function"]["name"]) == (call, "function", name)
        assert rest
        for piece in rest:
            assert set(piece) == {"index", "function"}
            assert set(piece["function"]) == {"arguments"}
    finishes = [c["choices"][0]["finish_reason"] for c in chunks]
    assert finishes == [None] * (len(chunks) - 1) + ["tool_calls"]
    calls = gathered(chunks)["tool_calls"]
    assert [json.loads(calls[index]["arguments"]) for index in (0, 1)] == [{"city": "Oslo"}, {}]


async def test_a_chunk_has_one_entry_a_call(able: Rig):
    """Pieces of one call that come at once are one entry: clients count entries as calls."""
    pieces = (
        CallDelta(index=0, id="call_a", name="weather"),
        CallDelta(index=0, arguments='{"city": '),
        CallDelta(index=1, id="call_b", name="time"),
        CallDelta(index=0, arguments='"Oslo"}'),
    )
    able.calls.script = deltas(detailed(calls=pieces), finish=FinishReason.TOOL_CALLS)
    _, chunk, _, _ = (await able.ask(tools=TOOLS, stream=True)).events
    first, second = chunk["choices"][0]["delta"]["tool_calls"]
    assert (first["id"], first["function"]["arguments"]) == ("call_a", '{"city": "Oslo"}')
    assert (second["index"], second["function"]["name"]) == (1, "time")


async def test_whole_and_streamed_calls_are_the_same(able: Rig):
    """Both forms have the same text, ids, names and arguments."""
    able.calls.script = deltas(*TWO_CALLS, finish=FinishReason.TOOL_CALLS)
    streamed = gathered((await able.ask(tools=TOOLS, stream=True)).events[:-1])
    (choice,) = (await able.ask(tools=TOOLS)).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == streamed["content"] == "Let me see. "
    assert [
        {"id": c["id"], "type": c["type"], **c["function"]} for c in choice["message"]["tool_calls"]
    ] == [
        {"id": c["id"], "type": c["type"], "name": c["name"], "arguments": c["arguments"]}
        for c in streamed["tool_calls"].values()
    ]


async def test_calls_alone_have_no_content(able: Rig):
    """Where the model only calls, `content` is null."""
    able.calls.script = deltas(*TWO_CALLS[1:], finish=FinishReason.TOOL_CALLS)
    message = (await able.ask(tools=TOOLS)).json["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_no_parallel_calls_means_one(able: Rig, stream: bool):
    """With `parallel_tool_calls: false` one call is given, and no more can be forced."""
    able.calls.script = deltas(*TWO_CALLS, finish=FinishReason.TOOL_CALLS)
    reply = await able.ask(tools=TOOLS, parallel_tool_calls=False, stream=stream)
    if stream:
        assert list(gathered(reply.events[:-1])["tool_calls"]) == [0]
    else:
        assert len(reply.json["choices"][0]["message"]["tool_calls"]) == 1
    await able.ask(tools=TOOLS, parallel_tool_calls=False, tool_choice="required")
    guide = able.calls.opened[-1].sampling.guide
    assert guide is not None
    assert json.loads(guide.text)["maxItems"] == 1


async def test_tools_are_told_to_decode(able: Rig):
    """Without a choice decode looks for calls of all tools, and nothing is forced."""
    await able.ask(tools=TOOLS)
    call = able.calls.opened[0]
    assert call.sampling.guide is None
    assert call.parsing is not None
    assert [t["function"]["name"] for t in json.loads(call.parsing.tools)] == ["weather", "time"]
    assert not call.parsing.forced


@pytest.mark.parametrize(
    ("choice", "names", "most"),
    [
        ("required", ["weather", "time"], None),
        ({"type": "function", "function": {"name": "time"}}, ["time"], 1),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
            ["weather"],
            None,
        ),
    ],
)
async def test_a_call_can_be_forced(able: Rig, choice: Any, names: list[str], most: int | None):
    """A forced answer is an array of calls of the chosen tools: a grammar makes sure of it."""
    await able.ask(tools=TOOLS, tool_choice=choice)
    call = able.calls.opened[0]
    assert call.parsing is not None
    assert call.parsing.forced
    assert call.sampling.guide is not None
    assert call.sampling.guide.kind is GuideKind.JSON_SCHEMA
    schema = json.loads(call.sampling.guide.text)
    items = schema["items"].get("anyOf", [schema["items"]])
    assert [item["properties"]["name"]["enum"] for item in items] == [[name] for name in names]
    assert (schema["minItems"], schema.get("maxItems")) == (1, most)


async def test_references_of_parameters_hold_in_the_forced_schema(able: Rig):
    """Schemas of several tools may use the same names for different definitions."""

    def tool(name: str, kind: str) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/x"}},
            "$defs": {"x": {"type": kind}},
        }
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    tools = [tool("f", "string"), tool("g", "integer")]
    await able.ask(tools=tools, tool_choice="required")
    guide = able.calls.opened[0].sampling.guide
    assert guide is not None
    schema = json.loads(guide.text)
    for index, kind in enumerate(("string", "integer")):
        key = schema["items"]["anyOf"][index]["properties"]["parameters"]["$ref"]
        parameters = schema["$defs"][key.removeprefix("#/$defs/")]
        reference = parameters["properties"]["x"]["$ref"]
        found: Any = schema
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        assert found == {"type": kind}


async def test_tools_that_may_not_be_called_are_not_there(able: Rig):
    """`tool_choice: none` leaves plain text: nothing is parsed."""
    await able.ask(tools=TOOLS, tool_choice="none")
    assert able.calls.opened[0].sampling.guide is None
    parsing = able.calls.opened[0].parsing
    assert parsing is None or not parsing.tools


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"ebnf": "root ::= nosuch"}, "ebnf"),
    ],
)
async def test_what_the_engine_refuses_is_named(able: Rig, fields: dict[str, Any], param: str):
    """A guide that only the engine finds wanting is a 400 with its field, not a failure."""
    able.calls.script = then_fail(PdbusError(ErrorCode.INVALID_VALUE, "no such rule"))
    reply = await able.ask(**fields, stream=True)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert "no such rule" in reply.error["message"]


@pytest.mark.parametrize(
    ("missing", "fields", "param"),
    [
        (Feature.TOOLS, {"tools": TOOLS}, "tools"),
        (Feature.GUIDES, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        (Feature.GUIDES, {"response_format": {"type": "json_object"}}, "response_format"),
        (Feature.GUIDES, {"regex": "a+"}, "regex"),
        (Feature.GUIDES, {"ebnf": "root ::= 'a'"}, "ebnf"),
        (Feature.LOGPROBS, {"logprobs": True}, "logprobs"),
    ],
)
async def test_what_the_workers_cannot_is_refused(
    rig: Rig, missing: Feature, fields: dict[str, Any], param: str
):
    """A request for something that one set of workers lacks names its field; others are served."""
    able = frozenset(Feature)
    rig.fleet.served = (ServedModel(MODEL, 0, features=able - {missing}),)
    reply = await rig.ask(**fields)
    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")
    assert reply.error["param"] == param
    assert rig.calls.opened == []
    rig.fleet.served = (ServedModel(MODEL, 0, features=able),)
    assert (await rig.ask(**fields)).status == 200


async def test_reasoning_is_told_apart(able: Rig):
    """Reasoning has a field of its own, streamed and whole, and its tokens are counted."""
    script = (detailed(reasoning="Hm, "), detailed(reasoning="yes."), Delta(ID, "Yes"))
    able.calls.script = deltas(*script, reasoning=2)
    body = (await able.ask()).json
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, yes.", "Yes")
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    chunks = (await able.ask(stream=True)).events[:-1]
    assert all("content" not in c["choices"][0]["delta"] for c in chunks[1:3])
    assert gathered(chunks)["reasoning_content"] == "Hm, yes."
    assert gathered(chunks)["content"] == "Yes"


async def test_reasoning_can_be_left_in_the_text(able: Rig):
    """`separate_reasoning: false` asks decode for plain text."""
    await able.ask()
    await able.ask(separate_reasoning=False)
    first, second = (call.parsing for call in able.calls.opened)
    assert first == Parsing(reasoning=True)
    assert second is None


def probable(token: int, logprob: float, *top: tuple[int, float]) -> TokenLogprob:
    return TokenLogprob(token=token, logprob=logprob, top=top)


@pytest.fixture
def euro(able: Rig) -> Rig:
    """Says `€!` in five tokens, the first three of which are the bytes of one character."""
    tokens = [*able.text.tokenizer.encode("€!")[::4]]
    end = able.text.eos_ids[0]
    first, second, third, last = tokens
    able.calls.script = deltas(
        detailed(logprobs=(probable(first, -0.5, (first, -0.5), (last, -1.5)),)),
        detailed(logprobs=(probable(second, -0.25, (second, -0.25), (last, -9.0)),)),
        detailed(
            "€!",
            logprobs=(
                probable(third, -0.125, (third, -0.125), (last, -3.0)),
                probable(last, float("-inf"), (third, -0.0), (last, float("-inf"))),
            ),
        ),
        detailed(logprobs=(probable(end, -1.0, (end, -1.0), (last, -2.0)),)),
    )
    return able


async def test_logprobs_have_an_entry_a_token(euro: Rig):
    """Whole and streamed have the same entries, as many as tokens, and bytes make up the text."""
    body = (await euro.ask(logprobs=True, top_logprobs=2)).json
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"] == 5
    assert bytes(b for entry in entries[:4] for b in entry["bytes"]).decode() == "€!"
    assert [entry["token"] for entry in entries] == ["\\xe2", "\\x82", "\\xac", "!", "<|im_end|>"]
    assert [entry["logprob"] for entry in entries] == [-0.5, -0.25, -0.125, -9999.0, -1.0]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    chunks = (await euro.ask(logprobs=True, top_logprobs=2, stream=True)).events[:-1]
    told = [c["choices"][0]["logprobs"] for c in chunks]
    assert [entry for part in told if part for entry in part["content"]] == entries
    assert gathered(chunks)["content"] == body["choices"][0]["message"]["content"] == "€!"
    assert [call.sampling.logprobs for call in euro.calls.opened] == [2, 2]


async def test_logprobs_are_told_only_where_asked_for(euro: Rig):
    """Without the field no chunk and no answer has them."""
    body = (await euro.ask()).json
    assert body["choices"][0]["logprobs"] is None
    chunks = (await euro.ask(stream=True)).events[:-1]
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)
    assert [call.sampling.logprobs for call in euro.calls.opened] == [None, None]


async def test_detailed_answers_fit_the_schema_of_openai(euro: Rig):
    """Answers and chunks with log-probabilities and calls validate against the public schema."""
    needed("openai_openapi.yaml")
    whole = spec.validator("CreateChatCompletionResponse")
    chunk = spec.validator("CreateChatCompletionStreamResponse")
    asked: list[dict[str, Any]] = [{"logprobs": True, "top_logprobs": 1}, {"tools": TOOLS}]
    for fields in asked:
        whole.validate((await euro.ask(**fields)).json)
        for event in (await euro.ask(**fields, stream=True)).events[:-1]:
            chunk.validate(event)
        euro.calls.script = deltas(*TWO_CALLS, finish=FinishReason.TOOL_CALLS)


async def test_an_answer_with_calls_can_be_sent_back(able: Rig):
    """The message of an answer and the results of its calls are valid as history."""
    able.calls.script = deltas(*TWO_CALLS, finish=FinishReason.TOOL_CALLS)
    message = (await able.ask(tools=TOOLS)).json["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "12"}
        for call in message["tool_calls"]
    ]
    user = {"role": "user", "content": "Hi"}
    assert (await able.ask(tools=TOOLS, messages=[user, message, *results])).status == 200
