"""Which guides are refused before the scheduler meets them."""

import asyncio
import importlib
import json
import sys
from importlib.util import find_spec
from itertools import product
from types import ModuleType

import pytest

from libs.engine.sgl.guides import GuideCheck
from proto.sampling import Guide, GuideKind

SCHEMA, REGEX, EBNF = GuideKind.JSON_SCHEMA, GuideKind.REGEX, GuideKind.EBNF
TOKENS = [bytes(token) for token in product(b"abcdefghijklmnopqrstuvwxyz0123456789", repeat=3)]
"""A vocabulary as large as those of small models."""
WIDE = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1000)}}
TREE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "$ref": "#/$defs/node",
}


@pytest.fixture(scope="module")
def sglang():
    """Of SGLang only what checks need is loaded."""
    before = set(sys.modules)
    if "sglang" not in sys.modules:
        package = ModuleType("sglang")
        package.__path__ = list(find_spec("sglang").submodule_search_locations)
        sys.modules["sglang"] = package
    importlib.import_module("sglang.srt.constrained.json_schema_validation")
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "sglang":
            del sys.modules[name]


@pytest.fixture
def check(sglang):
    """The check of one engine."""
    made = GuideCheck(lambda: TOKENS, any_whitespace=True, max_whitespace_cnt=2)
    yield made
    made.close()


def problem(check, kind, text):
    """What is wrong with a guide."""

    async def ask():
        return await check.problem(Guide(kind=kind, text=text))

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (SCHEMA, '{"type": "object"}'),
        (SCHEMA, json.dumps(TREE)),
        (SCHEMA, json.dumps(WIDE)),
        (SCHEMA, '{"type": "array", "items": {"enum": ["a", 1, null]}, "maxItems": 3}'),
        (REGEX, "(yes|no) [0-9]{3}"),
        (EBNF, 'root ::= "hello" | "good" "bye"'),
    ],
)
def test_guides_that_answers_can_follow_pass(check, kind, text):
    """Valid guides pass: recursive ones and one with a thousand properties too."""
    assert problem(check, kind, text) == ""


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (SCHEMA, "{broken", "cannot be compiled"),
        (SCHEMA, '{"type": "nosuch"}', "nosuch"),
        (SCHEMA, '{"type": "string", "pattern": "(["}', "Unclosed"),
        (SCHEMA, '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        (SCHEMA, '{"$ref": "#"}', "no answer can follow"),
        (SCHEMA, "[" * 100000 + "]" * 100000, "cannot be compiled"),
        (REGEX, "([", "Unclosed"),
        (REGEX, "a" * 20000, "16384 are allowed"),
        (EBNF, "root ::= nosuch", "nosuch"),
        (EBNF, "\ud800", "cannot be compiled"),
    ],
)
def test_guides_that_no_answer_can_follow_are_refused(check, kind, text, why):
    """The reason names what is wrong, and neither time nor place in foreign source."""
    found = problem(check, kind, text)
    assert why in found
    assert ".cc" not in found
    assert found == problem(check, kind, text)


def test_a_guide_that_would_take_minutes_is_refused(check):
    """A short text whose automaton is huge: the samples tell, or do not come to an end in time."""
    found = problem(check, REGEX, "[^a]?" * 100)
    assert "complex" in found or "within" in found


def test_a_guide_that_takes_too_long_is_refused(check, monkeypatch):
    """The caller hears of it in time; what the thread finds later is kept."""
    monkeypatch.setattr("libs.engine.sgl.guides._MOST_S", 0.01)
    text = "[a-f]?" * 60
    guide = Guide(kind=REGEX, text=text)

    async def scenario():
        first = await check.problem(guide)
        async with asyncio.timeout(20):
            while await check.problem(guide):
                await asyncio.sleep(0.05)
        return first

    assert "within" in asyncio.run(scenario())
