"""Every format that SGLang knows, on text that was made to break it."""

import random

import pytest

from libs.engine.parse import known_names

HEAVY = {"inkling", "kimi_k3"}
"""They load torch."""
BARE = {"response_template"}
"""It wants what only its own models bring."""
DROPS = {"gpt-oss"}
"""It moves text from one place to another."""
COMMON = [
    '{"name": "get_weather", "arguments": {"city": "Par"}}',
    '{"name": "nosuch", "arguments": {}}',
    "<think>",
    "</think>",
    "get_time",
    "hello",
    "\u00e9",
    *'\n {}[]",<>|',
]
ROUNDS = 12


def texts_for(detector):
    """Texts of the format's own marks and of what surrounds them."""
    dice = random.Random(7)
    marks = [own for own in vars(detector).values() if isinstance(own, str) and own]
    for _ in range(ROUNDS):
        yield "".join(dice.choice(marks + COMMON) for _ in range(dice.randint(1, 14)))


@pytest.mark.parametrize("name", sorted(set(known_names().tools) - HEAVY - BARE))
def test_no_format_of_calls_depends_on_cuts(bench, name):
    """The parts of an answer do not depend on cuts; what brings no call comes back whole."""
    detector = bench.parsers(name).calls([])
    for text in texts_for(detector):
        whole = bench.take_apart(text, tools=name)
        assert bench.take_apart(text, range(1, len(text)), tools=name) == whole
        if not whole[2] and name not in DROPS:
            assert whole[0] == text


@pytest.mark.parametrize("name", sorted(set(known_names().reasoning) - BARE))
def test_no_format_of_reasoning_depends_on_cuts(bench, name):
    """Reasoning and text are the same wherever the answer was cut."""
    thoughts = bench.parsers("", name).thoughts
    for text in texts_for(thoughts(False)):
        whole = bench.take_apart(text, reasoning=name)
        assert bench.take_apart(text, range(1, len(text)), reasoning=name) == whole
