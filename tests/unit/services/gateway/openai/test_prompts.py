"""What reaches the template, and what the model is asked to go on with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.text import ChatTemplate, ModelText
from proto.openai.messages import Message, SaidFunction, SaidToolCall
from services.gateway.openai.prompts import Setting, render_chat
from tests.unit.services.gateway.rig import ABLE, Rig

USER = {"role": "user", "content": "Hi"}
CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }})"
    "{% endfor %}{{ m.content }}{% endfor %}"
)
"""A template that shows calls."""


def with_template(rig: Rig, source: str) -> None:
    rig.text = replace(rig.text, template=ChatTemplate(source, {"bos_token": "<s>"}))


def prompt_of(rig: Rig, number: int = -1) -> str:
    return rig.text.tokenizer.decode(rig.calls.opened[number].input_ids)


async def test_the_answer_goes_on_with_the_last_message(rig: Rig):
    """`continue_final_message`: the prompt ends inside the assistant's own turn."""
    messages = [USER, {"role": "assistant", "content": "Hello, I"}]
    await rig.ask(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert prompt_of(rig).endswith("<|im_start|>assistant\nHello, I")
    assert (await rig.ask(messages=messages)).status == 200
    assert prompt_of(rig).endswith("<|im_end|>\n<|im_start|>assistant\n")


async def test_the_next_turn_can_be_left_closed(rig: Rig):
    """`add_generation_prompt: false` leaves out what opens the model's turn."""
    await rig.ask(add_generation_prompt=False)
    assert prompt_of(rig).endswith("Hi<|im_end|>\n")


async def test_variables_reach_the_template(rig: Rig):
    """`chat_template_kwargs` and, where the template asks for it, `reasoning_effort`."""
    with_template(rig, "{{ enable_thinking }}/{{ reasoning_effort }}")
    await rig.ask(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert prompt_of(rig) == "False/low"
    own = {"reasoning_effort": "mine", "enable_thinking": 1}
    await rig.ask(chat_template_kwargs=own, reasoning_effort="low")
    assert prompt_of(rig) == "1/mine"


async def test_effort_means_nothing_to_other_templates(rig: Rig):
    """A template without the variable renders as ever."""
    await rig.ask(reasoning_effort="high")
    await rig.ask()
    assert prompt_of(rig, 0) == prompt_of(rig, 1)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"a":  1}', '{"a": 1}'), ("{broken", '"{broken"'), ("[1]", '"[1]"'), ("", '""')],
)
async def test_calls_of_earlier_answers_are_shown(rig: Rig, arguments: str, shown: str):
    """Arguments are an object where they are one, and the model's own text where not."""
    with_template(rig, CALLS)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "5"}
    assert (await rig.ask(messages=[USER, answer, result])).status == 200
    assert prompt_of(rig) == f"Hif({shown})5"


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_tools_are_shown_unless_none_may_be_called(rig: Rig, choice: str):
    """The template gets the tools that may be called."""
    with_template(rig, "{{ tools | tojson }}")
    rig.fleet.served = (ABLE,)
    tool = {"type": "function", "function": {"name": "f", "description": "d"}}
    await rig.ask(tools=[tool], tool_choice=choice)
    nothing = {"type": "object", "properties": {}}
    shown = {"name": "f", "description": "d", "parameters": nothing}
    assert json.loads(prompt_of(rig)) == [{"type": "function", "function": shown}]
    await rig.ask(tools=[tool], tool_choice="none")
    assert prompt_of(rig) == "null"


@pytest.mark.parametrize("system", [True, False])
async def test_tools_are_listed_where_the_template_has_no_place(rig: Rig, system: bool):
    """A template that knows nothing of tools has them in the system's turn: none is ignored."""
    with_template(rig, "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
    rig.fleet.served = (ABLE,)
    tool = {"type": "function", "function": {"name": "f"}}
    given = [{"role": "system", "content": "Be brief."}] if system else []
    await rig.ask(tools=[tool], messages=[*given, USER])
    listed = '{"name":"f","parameters":{"type":"object","properties":{}}}'
    head = "Be brief.\n\n" if system else ""
    wanted = f"system:{head}You can call these functions:\n{listed};user:Hi;"
    assert prompt_of(rig) == wanted


async def test_salt_and_priority_are_passed_on(rig: Rig):
    """Both reach the call; without them there are none."""
    await rig.ask(cache_salt="mine", priority=-3)
    await rig.ask()
    first, second = rig.calls.opened
    assert (first.cache_salt, first.priority) == ("mine", -3)
    assert (second.cache_salt, second.priority) == ("", 0)


NAMES = st.text("abc_", min_size=1, max_size=5)
CONTENT = st.none() | st.text(max_size=8)
CALL = st.builds(
    SaidToolCall,
    id=st.text(max_size=4),
    function=st.builds(SaidFunction, name=NAMES, arguments=st.text(max_size=8)),
)
MESSAGES = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
        content=CONTENT,
        tool_calls=st.none() | st.lists(CALL, max_size=2),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None)
@given(MESSAGES, st.booleans())
def test_messages_are_data(toy: ModelText, messages: list[Message], ask: bool):
    """Whatever is in messages and calls, it stands in the prompt as it is."""
    text = replace(toy, template=ChatTemplate(CALLS, {}))
    made = render_chat(text, messages, unix_ms=0, setting=Setting(ask=ask))
    wanted = ""
    for message in messages:
        for call in message.tool_calls or ():
            wanted += f"{call.function.name}({json.dumps(_arguments(call), ensure_ascii=False)})"
        wanted += str(message.content or "")
    assert made == wanted


def _arguments(call: SaidToolCall) -> Any:
    try:
        found = json.loads(call.function.arguments, parse_constant=_refuse)
    except ValueError:
        return call.function.arguments
    return found if isinstance(found, dict) else call.function.arguments


def _refuse(name: str) -> None:
    raise ValueError(name)
