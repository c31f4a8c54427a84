"""Answers taken apart by SGLang's parsers."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.engine.parse import UnreadableTools
from proto.sampling import Guide, GuideKind, SamplingParams

CALLS = [
    ("get_weather", '{"city": "Paris \u00e9", "days": [1, 2, {"a": null}]}'),
    ("get_time", "{}"),
]
HERMES = (
    'Sure.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Paris \u00e9", "days": [1, 2, {"a": null}]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)
CODER = (
    "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "</function>\n</tool_call>"
)
FORCED = (
    '[{"name": "get_weather", "parameters": '
    '{"city": "Paris \u00e9", "days": [1, 2, {"a": null}]}}\n , '
    '{"name": "get_time", "parameters": {}}]'
)
MALFORMED = [
    '<tool_call>\n{"name": "nosuch", "arguments": {"a": 1}}\n</tool_call> done',
    "<tool_call>\n{bad",
    "<tool_call>\n[1, 2]\n</tool_call>",
    '<tool_call>\n{"name": "get_time", "arguments": {"a": nonsense}}\n</tool_call>',
    "a </tool_call> b",
    "<tool_ca",
    " \n ",
]
FRAGMENTS = [
    "<tool_call>",
    "<tool_call>\n",
    "</tool_call>",
    '{"name": "get_weather", "arguments": {"city": "Par"}}',
    '{"name": "nosuch", "arguments": {}}',
    '{"name": "get_time"',
    "<think>",
    "</think>",
    "[{",
    "}]",
    "get_time",
    "\n",
    " ",
    '"',
    "\U0001f468\u200d\U0001f469",
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=10).map("".join)


@st.composite
def cut_texts(draw):
    """A text, and where it is cut."""
    text = draw(TEXTS)
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=6))
    return text, cuts


@pytest.mark.parametrize("name", ["qwen25", "hermes"])
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_calls_are_told_apart_from_text(bench, name, size):
    """Two calls come with their arguments, and the margins around them are no text."""
    cuts = range(size, len(HERMES), size)
    assert bench.take_apart(HERMES, cuts, tools=name) == ("Sure.", "", CALLS)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_formats_that_are_not_json_work_too(bench, size):
    """Calls written as tags come as JSON."""
    text, _, calls = bench.take_apart(CODER, range(size, len(CODER), size), tools="qwen3_coder")
    assert text == "Sure."
    ((name, arguments),) = calls
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Paris"})


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_forced_calls_are_an_array(bench, size):
    """What a grammar has forced is parsed whatever the model's own format is, or without one."""
    cuts = range(size, len(FORCED), size)
    for name in ("qwen25", ""):
        answer = bench.take_apart(FORCED, cuts, tools=name, forced=True)
        assert answer == ("", "", CALLS)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_reasoning_comes_before_text_and_calls(bench, size):
    """Reasoning, text and calls of one answer are three things."""
    text = f"<think>Is 1 < 2?</think>{HERMES}"
    cuts = range(size, len(text), size)
    answer = bench.take_apart(text, cuts, tools="qwen25", reasoning="qwen3")
    assert answer == ("Sure.", "Is 1 < 2?", CALLS)


@pytest.mark.parametrize("text", MALFORMED)
@pytest.mark.parametrize("name", ["qwen25", "hermes"])
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_no_call_is_text(bench, text, name, size):
    """Text that looks like a call and is none comes back whole."""
    cuts = range(size, len(text), size)
    assert bench.take_apart(text, cuts, tools=name) == (text, "", [])


@pytest.mark.parametrize("name", ["qwen25", "hermes"])
def test_a_call_of_nothing_is_text_and_the_next_one_is_a_call(bench, name):
    """A function that does not exist does not hide the call that follows it."""
    wrong, right = (
        f'<tool_call>\n{{"name": "{function}", "arguments": {{"a": 1}}}}\n</tool_call>'
        for function in ("nosuch", "get_time")
    )
    text, _, calls = bench.take_apart(f"{wrong}\n{right}", tools=name)
    assert (text.strip(), calls) == (wrong, [("get_time", '{"a": 1}')])


def test_a_call_without_arguments_has_none(bench):
    """A call that names no arguments is a call with an empty object."""
    text = '<tool_call>\n{"name": "get_time"}\n</tool_call>'
    assert bench.take_apart(text, tools="qwen25") == ("", "", [("get_time", "{}")])


def test_text_behind_calls_is_given(bench):
    """What a model says after its calls is text."""
    text, _, calls = bench.take_apart(f"{HERMES}\nThat is all.", tools="qwen25")
    assert text.split() == ["Sure.", "That", "is", "all."]
    assert calls == CALLS


def test_a_call_that_is_cut_keeps_what_came(bench):
    """Of a call that is cut by the token limit there is the name and the arguments so far."""
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": [1, 2'
    said, _, ((name, arguments),) = bench.take_apart(text, range(1, len(text)), tools="qwen25")
    assert (said, name) == ("", "get_weather")
    assert '{"city": "Paris", "days": [1, 2'.startswith(arguments)
    assert '"Paris' in arguments


@pytest.mark.parametrize("name", ["qwen25", "hermes", "qwen3_coder", "llama3", "mistral"])
@settings(max_examples=40, deadline=None)
@given(case=cut_texts())
def test_no_text_breaks_a_parser(bench, name, case):
    """Whatever a model says, and wherever it is cut, the parts are the same and nothing fails."""
    text, cuts = case
    whole = bench.take_apart(text, tools=name)
    assert bench.take_apart(text, cuts, tools=name) == whole
    if not whole[2]:
        assert whole[0] == text


@settings(max_examples=60, deadline=None)
@given(case=cut_texts(), forced=st.booleans())
def test_reasoning_and_calls_do_not_depend_on_cuts(bench, case, forced):
    """The same of an answer that may think, call, or be forced to call."""
    text, cuts = case
    names = {"tools": "qwen25", "reasoning": "qwen3", "forced": forced}
    assert bench.take_apart(text, cuts, **names) == bench.take_apart(text, **names)


def test_long_arguments_take_linear_time(bench):
    """A detector reads a long call as often as its length doubles, not once a token."""
    parser = bench.parsers("qwen25").parser(bench.job())
    detector = parser._calls._detector
    parse, read = detector.parse_streaming_increment, []

    def counting(text, tools):
        read.append(len(detector._buffer) + len(text))
        return parse(text, tools)

    detector.parse_streaming_increment = counting
    city = "word " * 6000
    text = (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    )
    for place in range(0, len(text), 4):
        parser.feed(text[place : place + 4])
    parser.end()
    assert sum(read) < 60 * len(text)


def test_a_guide_leaves_no_room_for_reasoning(bench):
    """An answer that must match a schema from its first character is not taken for reasoning."""
    guide = Guide(kind=GuideKind.JSON_SCHEMA, text="{}")
    sampling = SamplingParams(max_tokens=5, guide=guide)
    parsers = bench.parsers("", "deepseek-r1")
    job = bench.job(sampling=sampling, tools="", reasoning=True)
    assert parsers.parser(job) is None
    assert parsers.parser(bench.job(tools="", reasoning=True)) is not None


def test_tools_that_cannot_be_read_are_refused(bench):
    """Broken tools are an error of the request, with a reason."""
    for tools in ("{", "3", '[{"type": "function"}]'):
        with pytest.raises(UnreadableTools, match="tools"):
            bench.parsers("qwen25").parser(bench.job(tools=tools))


def test_an_exception_in_a_parser_ends_parsing_only(bench):
    """If SGLang's code fails, all that is not given yet, and all that follows, is text."""
    parser = bench.parsers("qwen25").parser(bench.job())

    def fail(_text, _tools):
        raise RuntimeError

    assert parser.feed("Hello <tool_").text == "Hello"
    parser._calls._detector.parse_streaming_increment = fail
    said = parser.feed("call>\n{").text + parser.feed(" more").text + parser.end().text
    assert said == " <tool_call>\n{ more"
