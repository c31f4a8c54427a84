"""Scripted engine hosts that take answers apart with SGLang's parsers."""

import asyncio
import json

import psutil
import pytest

from libs.clock import SystemClock
from libs.engine.api import EngineDead
from libs.engine.process import HostedEngine
from libs.engine.script.settings import AnswerMode, ScriptOptions
from libs.engine.scripted import vocabulary_of
from libs.lifecycle import Tasks
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import JobFailed, JobKind
from proto.output import Parsing
from proto.workers import Feature, Role
from tests.support.engines import collect, host_options, make_job
from tests.support.words import write_words

pytestmark = pytest.mark.integration

TOOLS = json.dumps(
    [{"type": "function", "function": {"name": name}} for name in ("get_weather", "get_time")]
)
SAID = (
    "<think>Two calls.</think>Sure."
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)
MOST_MIB = 300
"""A host of the scripted engine must not load torch, which alone takes more."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder with one token a byte."""
    return str(write_words(tmp_path_factory.mktemp("parsing")))


def options_of(folder, role, name):
    """A host that says what it is told and knows the formats of one model."""
    return host_options(
        role,
        name=name,
        model_path=folder,
        script=ScriptOptions(answer=AnswerMode.SAY),
        tool_parser="qwen25",
        reasoning_parser="qwen3",
    )


async def test_a_pair_tells_calls_and_reasoning_apart(folder):
    """What crosses the data plane as bytes comes out of decode as text, reasoning and calls."""
    ids = vocabulary_of(host_options(model_path=folder)).tokens(f"Call: [[say]]{SAID}[[/say]]")
    clock = SystemClock()
    async with Tasks() as tasks:
        prefill, decode = (
            HostedEngine(options_of(folder, role, name), clock, tasks)
            for name, role in enumerate((Role.PREFILL, Role.DECODE), 1)
        )
        try:
            source, ready = await asyncio.gather(prefill.start(), decode.start())
            sides = {"max_tokens": 400, "ignore_eos": False, "logprobs": 0}
            first = make_job(1, ids, kind=JobKind.PREFILL, **sides)
            parsing = Parsing(tools=TOOLS, reasoning=True)
            second = make_job(
                1, ids, kind=JobKind.DECODE, source=source.address, parsing=parsing, **sides
            )
            _, answer = await asyncio.gather(
                collect(prefill.run(first)), collect(decode.run(second))
            )
            bad = make_job(2, ids, kind=JobKind.DECODE, parsing=Parsing(tools="{"))
            refused = (await collect(decode.run(bad))).end
            sizes = [psutil.Process(pid).memory_info().rss >> 20 for pid in ready.pids]
        finally:
            await asyncio.gather(prefill.stop(), decode.stop())
    assert set(ready.features) == {Feature.LOGPROBS, Feature.TOOLS, Feature.REASONING}
    assert source.features == (Feature.LOGPROBS,)
    assert answer.text == "Sure."
    assert "".join(part.reasoning for part in answer.details) == "Two calls."
    deltas = [delta for part in answer.details for delta in part.calls]
    arguments = ["", ""]
    for delta in deltas:
        arguments[delta.index] += delta.arguments
    assert [delta.name for delta in deltas if delta.id] == ["get_weather", "get_time"]
    assert [json.loads(text) for text in arguments] == [{"city": "Paris"}, {}]
    assert sum(len(part.logprobs) for part in answer.details) == len(answer.ids)
    assert answer.end.finish is FinishReason.TOOL_CALLS
    assert answer.end.reasoning_tokens == len("<think>Two calls.</think>")
    assert isinstance(refused, JobFailed)
    assert refused.code is ErrorCode.INVALID_VALUE
    assert max(sizes) < MOST_MIB


async def test_a_parser_that_does_not_exist_stops_the_host(folder):
    """A host does not start with a wrong name; the reason lists the right ones."""
    options = host_options(model_path=folder, tool_parser="nosuch")
    async with Tasks() as tasks:
        engine = HostedEngine(options, SystemClock(), tasks)
        with pytest.raises(EngineDead, match=r"no tool parser 'nosuch'; there are .*qwen25"):
            await engine.start()
