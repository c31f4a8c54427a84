"""`/v1/responses`: items in and out, the order of events, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ids import RequestId
from proto.ledger import Usage
from proto.openai.responses.request import ResponseRequest
from proto.output import CallDelta, Details
from services.gateway.api import Delta
from services.gateway.openai.fields import Stance
from services.gateway.openai.frames import Head
from services.gateway.openai.responses.chat import as_chat
from services.gateway.openai.responses.fields import FIELDS
from services.gateway.openai.responses.frames import ResponseFrames
from services.gateway.openai.responses.wording import Wording
from tests.support.checked.answers import AnswerCheck
from tests.unit.services.gateway.rig import (
    ABLE,
    MODEL,
    Reply,
    Rig,
    Script,
    ScriptedLive,
    rules,
    then_fail,
)

PATH = "/v1/responses"
ID = b"\0\0\0\0"


async def ask(rig: Rig, **fields: Any) -> Reply:
    body = {"model": MODEL, "input": "Hi"} | fields
    given = {"content-type": "application/json"}
    return await rig.visit("POST", PATH, json.dumps(body).encode(), given).run()


def events(reply: Reply) -> list[dict[str, Any]]:
    """Return the data of all events."""
    frames = reply.body.decode().removesuffix("\n\n").split("\n\n")
    lines = [frame.split("\n") for frame in frames if not frame.startswith(":")]
    return [json.loads(data.removeprefix("data: ")) for _, data in lines]


def kinds(reply: Reply) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events(reply)]


def says(*parts: str | Details, finish: FinishReason = FinishReason.STOP) -> Script:
    """Answer with texts and details, one a token."""

    async def script(live: ScriptedLive) -> AsyncGenerator[Delta, None]:
        for part in parts:
            if isinstance(part, str):
                yield Delta(ID, part)
            else:
                yield Delta(ID, "", details=part)
        usage = Usage(
            prompt_tokens=live.call.prompt_tokens,
            completion_tokens=len(parts),
            cached_tokens=3,
            reasoning_tokens=2,
        )
        yield Delta(b"", "", finish, usage)

    return script


FULL = says(
    Details(reasoning="Let me "),
    Details(reasoning="think."),
    "Two ",
    "calls.",
    Details(calls=(CallDelta(index=0, id="call_a", name="f"),)),
    Details(calls=(CallDelta(index=0, arguments='{"x":'),)),
    Details(
        calls=(
            CallDelta(index=0, arguments="1}"),
            CallDelta(index=1, id="call_b", name="g", arguments="{}"),
        )
    ),
    finish=FinishReason.TOOL_CALLS,
)


async def test_a_whole_answer(rig: Rig):
    """Text, usage and what was asked for come back; nothing is stored."""
    reply = await ask(
        rig,
        instructions="Be short.",
        max_output_tokens=9,
        temperature=0.5,
        metadata={"a": "b"},
        user="u",
        store=False,
    )
    answer = reply.json
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == "Hello world"
    assert answer["store"] is False
    assert answer["usage"]["output_tokens"] == 2
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + 2
    assert answer["id"] == f"resp_{reply.headers['x-request-id']}"
    echoed = ("instructions", "max_output_tokens", "temperature", "metadata", "user")
    assert [answer[name] for name in echoed] == ["Be short.", 9, 0.5, {"a": "b"}, "u"]
    call = rig.calls.opened[0]
    assert (call.sampling.max_tokens, call.sampling.temperature) == (9, 0.5)


async def test_a_stream_of_text(rig: Rig):
    """The events of a plain answer come in OpenAI's order, and end with the whole answer."""
    reply = await ask(rig, stream=True)
    assert kinds(reply) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done", "completed"),
    ]
    found = events(reply)
    assert "".join(e["delta"] for e in found if e["type"].endswith("text.delta")) == "Hello world"
    whole = (await ask(rig)).json
    last = found[-1]["response"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["usage"] == whole["usage"]
    assert reply.body.startswith(b"event: response.created\ndata: ")


async def test_reasoning_text_and_calls_are_items(rig: Rig):
    """Reasoning, message and each call are items of their own, the same whole and streamed."""
    rig.calls.script = FULL
    whole = (await ask(rig)).json["output"]
    assert [item["type"] for item in whole] == [
        *("reasoning", "message", "function_call", "function_call"),
    ]
    assert whole[0]["content"][0]["text"] == "Let me think."
    assert whole[1]["content"][0]["text"] == "Two calls."
    assert [(c["call_id"], c["name"], c["arguments"]) for c in whole[2:]] == [
        ("call_a", "f", '{"x":1}'),
        ("call_b", "g", "{}"),
    ]
    reply = await ask(rig, stream=True)
    found = events(reply)
    streamed = found[-1]["response"]["output"]
    without_ids = [[{**item, "id": ""} for item in items] for items in (whole, streamed)]
    assert without_ids[0] == without_ids[1]
    assert found[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    assert [e["output_index"] for e in found if e["type"].endswith("item.added")] == [0, 1, 2, 3]
    done = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert done == streamed


async def test_allowed_tools_are_those_of_chat(rig: Rig):
    """Only some of the tools may be called, and the answer says which."""
    rig.fleet.served = (ABLE,)
    tools = [{"type": "function", "name": name} for name in ("f", "g")]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [tools[1]]}
    reply = await ask(rig, tools=tools, tool_choice=choice, text={"verbosity": "low"})
    assert reply.json["tool_choice"] == choice
    assert reply.json["text"]["verbosity"] == "low"
    parsing = rig.calls.opened[0].parsing
    assert parsing is not None
    assert [tool["function"]["name"] for tool in json.loads(parsing.tools)] == ["g"]
    reply = await ask(rig, tool_choice=choice)
    assert (reply.status, reply.error["param"]) == (400, "tool_choice")
    nested = [{"type": "function", "function": {"name": "g"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": nested}}
    reply = await rig.ask(tool_choice=allowed)
    assert (reply.status, reply.error["param"]) == (400, "tool_choice")
    unknown = choice | {"tools": [{"type": "function", "name": "h"}]}
    reply = await ask(rig, tools=tools, tool_choice=unknown)
    assert (reply.status, reply.error["param"]) == (400, "tool_choice")


async def test_only_the_first_call_is_given_where_one_is_wanted(rig: Rig):
    """Without parallel calls, all calls but the first are left out, whole and streamed."""
    rig.calls.script = FULL
    whole = (await ask(rig, parallel_tool_calls=False)).json["output"]
    assert [item.get("call_id") for item in whole] == [None, None, "call_a"]
    last = events(await ask(rig, stream=True, parallel_tool_calls=False))[-1]["response"]
    assert [item.get("call_id") for item in last["output"]] == [None, None, "call_a"]


async def test_each_delta_belongs_to_the_open_item(rig: Rig):
    """Deltas name the item that was added last and is not done yet."""
    rig.calls.script = FULL
    open_items: dict[str, int] = {}
    for event in events(await ask(rig, stream=True)):
        match event["type"]:
            case "response.output_item.added":
                assert not open_items
                open_items[event["item"]["id"]] = event["output_index"]
            case "response.output_item.done":
                assert open_items.pop(event["item"]["id"]) == event["output_index"]
            case kind if kind.endswith((".delta", ".done", "part.added")):
                assert open_items == {event["item_id"]: event["output_index"]}
    assert not open_items


async def test_an_answer_that_was_cut_is_incomplete(rig: Rig):
    """At the limit the last item and the answer are incomplete, with the reason."""
    rig.calls.script = says("Hel", finish=FinishReason.LENGTH)
    whole = (await ask(rig)).json
    assert (whole["status"], whole["output"][-1]["status"]) == ("incomplete", "incomplete")
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    reply = await ask(rig, stream=True)
    assert kinds(reply)[-2:] == ["output_item.done", "incomplete"]
    assert events(reply)[-1]["response"]["output"][0]["status"] == "incomplete"


async def test_an_answer_without_a_word_is_an_empty_message(rig: Rig):
    """Where the model ends at once there is still a message, whole and streamed."""
    rig.calls.script = says()
    assert (await ask(rig)).json["output"][0]["content"][0]["text"] == ""
    last = events(await ask(rig, stream=True))[-1]["response"]
    assert last["output"][0]["content"][0]["text"] == ""


async def test_a_failure_in_mid_stream_is_the_last_event(rig: Rig):
    """A stream that breaks ends with an `error` event that SDKs raise, and without an end."""
    rig.calls.script = then_fail(PdbusError(ErrorCode.DECODE_LOST), "Hel")
    reply = await ask(rig, stream=True)
    last = events(reply)[-1]
    assert (last["type"], last["code"]) == ("error", "decode_lost")
    assert last["error"]["message"] == last["message"]
    assert "completed" not in kinds(reply)


async def test_a_failure_after_a_comment_has_its_events_too(rig: Rig):
    """A stream that fails before its first token, but after its head, is still a whole stream."""
    rig.rules = rules(ping_s=0.05)
    body = json.dumps({"model": MODEL, "input": "Hi", "stream": True}).encode()
    visit = rig.visit("POST", PATH, body, {"content-type": "application/json"})

    async def fail_late(call: Any) -> Any:
        await visit.wrote.wait()
        raise PdbusError(ErrorCode.NO_WORKER)

    rig.calls.open = fail_late
    reply = await visit.run()
    assert reply.body.startswith(b": ping\n\n")
    assert kinds(reply) == ["created", "in_progress", "error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"rid": "x"}, "rid"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "text": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 9999}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools",
        ),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"input": "x" * 9999}, "input"),
    ],
)
async def test_what_cannot_be_had_is_refused_by_name(rig: Rig, fields: dict[str, Any], param: str):
    """The field at fault is named in the client's own words, and nothing is opened."""
    reply = await ask(rig, **fields)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert "messages" not in reply.error["message"]
    assert rig.calls.opened == []


def test_calls_belong_to_the_turn_that_made_them():
    """Calls follow the assistant's words in one turn; what they gave stands as turns of tools."""
    items = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Wait."},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    request = msgspec.convert({"model": MODEL, "input": items}, ResponseRequest)
    made = as_chat(request)
    assert [m["role"] for m in made.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert [c["id"] for c in made.messages[1]["tool_calls"]] == ["a", "b"]
    assert made.messages[1]["content"] == "Wait."
    assert made.sources == ["input[0]", "input[1]", "input[4]", "input[5]", "input[6]"]


def test_tools_and_forms_become_those_of_chat():
    """Flat tools, named choices and formats get the nesting that chat has."""
    request = msgspec.convert(
        {
            "model": MODEL,
            "input": "Hi",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}},
            "reasoning": {"effort": "low"},
        },
        ResponseRequest,
    )
    body = as_chat(request).body
    function = {"name": "f", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body["response_format"]["json_schema"]["schema"] == {}
    assert body["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages[0].content", "instructions.content"),
        ("messages[1].content[2].text", "input.content[2].text"),
        ("messages", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("response_format", "text.format"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools[3].function.name", "tools[3].name"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("temperature", "temperature"),
    ],
)
def test_faults_are_named_as_the_client_named_them(theirs: str, ours: str):
    """Whatever chat refuses is told with the field of the request that was made."""
    request = ResponseRequest(model=MODEL, input="Hi", instructions="x")
    error = PdbusError(ErrorCode.INVALID_VALUE, f"Invalid '{theirs}': no.", param=theirs)
    found = as_chat(request).error(error)
    assert (found.param, found.detail) == (ours, f"Invalid '{ours}': no.")


async def test_the_same_prompt_as_chat(rig: Rig):
    """A conversation of items has the very prompt that the same messages of chat have."""
    items = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "input_text", "text": "H"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Yes", "annotations": []}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "user", "content": "Go on"},
    ]
    messages = [
        {"role": "system", "content": "First."},
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "H"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Go on"},
    ]
    await ask(rig, input=items, instructions="First.")
    await rig.ask(messages=messages)
    ours, chat = rig.calls.opened
    assert ours.input_ids == chat.input_ids
    assert ours.sampling == chat.sampling
    assert ours.digest != chat.digest


async def test_the_answer_can_be_sent_back(rig: Rig):
    """The output of an answer is valid as input, as stateless clients keep a conversation."""
    output = (await ask(rig)).json["output"]
    user = {"role": "user", "content": "Hi"}
    again = await ask(rig, input=[user, *output, user])
    assert again.status == 200


def test_every_field_of_the_request_is_in_the_table():
    """The table and the type agree on what is carried out."""
    assert FIELDS.names(Stance.DONE) == set(ResponseRequest.__struct_fields__)


async def test_the_answer_is_not_stored(rig: Rig):
    """There is nothing to fetch, cancel or delete."""
    for method, path in (("GET", f"{PATH}/resp_1"), ("POST", f"{PATH}/resp_1/cancel")):
        reply = await rig.visit(method, path).run()
        assert (reply.status, reply.error["code"]) == (404, "not_found")


PARTS = st.lists(
    st.one_of(
        st.text(max_size=6),
        st.builds(Details, reasoning=st.text(max_size=6)),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(PARTS, st.integers(0, 3), st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_any_answer_is_a_whole_stream(parts: list[Any], calls: int, finish: FinishReason):
    """Whatever comes in which order, the events are in order and say what the deltas said."""
    request = ResponseRequest(model=MODEL, input="Hi", stream=True)
    made = ResponseFrames(Wording(request, Head(RequestId("1"), 5, MODEL)))
    deltas: list[Delta] = []
    for part in parts:
        if isinstance(part, str):
            deltas.append(Delta(ID, part))
        else:
            deltas.append(Delta(ID, "", details=part))
    for index in range(calls):
        named = CallDelta(index=index, id=f"call_{index}", name="f")
        more = CallDelta(index=index, arguments="{}")
        deltas.append(Delta(ID, "", details=Details(calls=(named, more))))
    body = b"".join([*(made.delta(0, delta) for delta in deltas), made.finish(0, finish)])
    body = made.opening + body + made.end(Usage(prompt_tokens=1, completion_tokens=1))
    AnswerCheck(PATH).feed(200, "text/event-stream", body, whole=True)
    reply = Reply(writes=[body])
    output = events(reply)[-1]["response"]["output"]
    for kind, said in (
        ("message", "".join(delta.text for delta in deltas)),
        ("reasoning", "".join(d.details.reasoning for d in deltas if d.details)),
    ):
        items = [item for item in output if item["type"] == kind]
        assert "".join(item["content"][0]["text"] for item in items) == said
    assert sum(item["type"] == "function_call" for item in output) == calls
    assert output
