"""Chat templates render as their models expect, and cannot do anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.text import ChatTemplate, ModelTextError, TemplateRefused, Turn
from libs.text import template as template_module

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nBe brief.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NOON_MS = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC."""

role = st.sampled_from(["user", "assistant"])
turns = st.lists(st.builds(Turn, role=role, content=st.text()), min_size=1, max_size=4)


def render(source: str, *conversation: Turn, **tokens: str) -> str:
    return ChatTemplate(source, tokens).render(conversation, unix_ms=NOON_MS)


def test_a_conversation_becomes_one_prompt():
    """Each turn stands between its markers, and the prompt ends where the model goes on."""
    prompt = render(CHATML, Turn("user", "Hi"), Turn("assistant", "Yes?"), Turn("user", "Sum"))
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n"
        "<|im_start|>user\nSum<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_special_tokens_are_there_by_their_names():
    """A template writes `bos_token` itself; nobody adds it again."""
    source = "{{ bos_token }}{{ messages[0].content }}"
    assert render(source, Turn("user", "x"), bos_token="<s>") == "<s>x"


@settings(deadline=None)
@given(turns)
def test_text_of_users_is_data(conversation: list[Turn]):
    """Whatever users write, it appears as it is: template code in it is never run."""
    source = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    wanted = "".join(f"[{turn.content}]" for turn in conversation)
    assert ChatTemplate(source, {}).render(conversation, unix_ms=0) == wanted


def test_code_in_a_message_is_not_run():
    """A message that looks like a template stays text."""
    assert render("{{ messages[0].content }}", Turn("user", "{{ 7 * 6 }}")) == "{{ 7 * 6 }}"


def test_blocks_leave_no_blank_lines():
    """Line breaks after blocks, and spaces before them, are trimmed as in the field."""
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source, Turn("user", "a"), Turn("user", "b")) == "a\nb\n"


def test_a_refusal_of_the_template_is_told():
    """What a template says with `raise_exception` reaches the caller."""
    source = "{{ raise_exception('Roles must alternate.') }}"
    with pytest.raises(TemplateRefused, match=r"^Roles must alternate\.$"):
        render(source, Turn("user", "x"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['content'] + 1 }}",
        "{{ messages[9]['content']['x'] }}",
        "{{ 1 // 0 }}",
        "{{ missing.attribute }}",
        "{{ messages[0].content | int(none) + none }}",
    ],
)
def test_a_fault_of_the_template_is_a_refusal_without_details(source: str):
    """Expressions that fail on a conversation refuse it, and tell nothing of the inside."""
    with pytest.raises(TemplateRefused, match=r"^The model's chat template cannot render"):
        render(source, Turn("user", "x"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ (1).__class__.__base__.__subclasses__() }}",
    ],
)
def test_the_sandbox_holds(source: str):
    """Templates reach neither Python's inside nor may they change what they are given."""
    with pytest.raises(TemplateRefused):
        render(source, Turn("user", "x"))


def test_a_prompt_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch):
    """Rendering stops at the limit, not when memory ends."""
    monkeypatch.setattr(template_module, "MAX_PROMPT_CHARS", 1000)
    source = "{% for _ in range(100000) %}{{ messages[0].content }}{% endfor %}"
    with pytest.raises(TemplateRefused, match="exceeds 1000 characters"):
        render(source, Turn("user", "xxxxxxxxxx"))


def test_a_broken_template_is_found_when_it_is_read():
    """Syntax faults stop the start of a gateway, not its first request."""
    with pytest.raises(ModelTextError, match="chat template is not valid"):
        ChatTemplate("{% for %}", {})


def test_a_huge_template_is_refused():
    """The size of a template is bounded."""
    with pytest.raises(ModelTextError, match="longer than"):
        ChatTemplate("x" * (template_module.MAX_TEMPLATE_CHARS + 1), {})


def test_tojson_writes_plain_json():
    """`tojson` gives JSON with its own spacing and without HTML escapes, as templates expect."""
    source = "{{ messages[0] | tojson }}|{{ {'b': 1, 'a': 'é<'} | tojson(indent=2) }}"
    plain, indented = render(source, Turn("user", "é<")).split("|")
    assert plain == '{"role": "user", "content": "é<"}'
    assert indented == json.dumps({"b": 1, "a": "é<"}, ensure_ascii=False, indent=2)


def test_time_comes_from_the_caller():
    """`strftime_now` tells the time that it was given, in UTC."""
    assert render("{{ strftime_now('%Y-%m-%d %H:%M') }}", Turn("user", "")) == "2023-11-14 22:13"


def test_loop_controls_and_generation_blocks_are_known():
    """Templates in the field use `break`, `continue` and `generation`."""
    source = (
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert render(source, Turn("user", "a"), Turn("user", "b")) == "a"


def test_optional_facts_of_a_turn_are_absent_unless_given():
    """A template that asks `is defined` sees only what the client sent."""
    source = "{% for m in messages %}{{ m.name is defined }},{{ m.tool_call_id }};{% endfor %}"
    prompt = render(source, Turn("user", "x"), Turn("tool", "y", name="n", tool_call_id="c1"))
    assert prompt == "False,;True,c1;"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def test_a_template_sees_tools_and_calls():
    """Tools are there in OpenAI's form, calls with their arguments as an object."""
    source = (
        "{{ tools | tojson }}|{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}={{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
        "|{{ messages[0].reasoning_content }}"
    )
    turn = Turn("assistant", "", tool_calls=(CALL,), reasoning_content="Hm")
    made = ChatTemplate(source, {}).render([turn], unix_ms=0, tools=[TOOL])
    tools, calls, thought = made.split("|")
    assert json.loads(tools) == [TOOL]
    assert (calls, thought) == ('f={"a": 1}', "Hm")


def test_without_tools_there_are_none():
    """A template that asks whether there are tools is told that there are none."""
    assert render("{{ 'some' if tools else 'none' }}", Turn("user", "x")) == "none"


def test_a_template_can_be_given_variables():
    """Variables reach the template, and cannot take the place of what is known."""
    source = "{{ enable_thinking }}{{ messages | length }}{{ bos_token }}"
    made = ChatTemplate(source, {"bos_token": "<s>"})
    assert made.variables >= {"enable_thinking", "messages", "bos_token"}
    values = {"enable_thinking": False, "bos_token": "x", "messages": []}
    assert made.render([Turn("user", "x")], unix_ms=0, values=values) == "False1<s>"
    assert made.reserved("messages")
    assert made.reserved("bos_token")
    assert not made.reserved("enable_thinking")


def test_the_next_turn_can_be_left_closed():
    """Without asking, the prompt ends with the last message."""
    made = ChatTemplate(CHATML, {}).render([Turn("system", "x")], unix_ms=0, ask=False)
    assert made == "<|im_start|>system\nx<|im_end|>\n"
