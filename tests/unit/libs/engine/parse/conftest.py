"""SGLang's parsers, loaded as the scripted engine's host loads them."""

import json
import sys
from itertools import pairwise

import pytest

from libs.engine.parse import load_parsers
from proto.host import Job, JobKind
from proto.ids import JobId, Room
from proto.output import Parsing
from proto.sampling import SamplingParams

NAMES = ("get_weather", "get_time")
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
        for name in NAMES
    ]
)


class Workbench:
    """Takes whole answers apart, in pieces of any size."""

    def __init__(self):
        self._loaded = {}

    def parsers(self, tools="", reasoning=""):
        """The parsers of these names."""
        key = tools, reasoning
        if key not in self._loaded:
            before = dict(sys.modules)
            try:
                self._loaded[key] = load_parsers(tools, reasoning, light=True)
            finally:
                # Other tests of this process may need all of SGLang.
                for name in set(sys.modules) - set(before):
                    if name.partition(".")[0] in ("sglang", "xgrammar"):
                        del sys.modules[name]
        return self._loaded[key]

    def job(self, *, sampling=None, **parsing):
        """A decode job whose answer is to be parsed."""
        return Job(
            job=JobId("j" * 28),
            kind=JobKind.DECODE,
            input_ids=b"\0" * 4,
            sampling=sampling or SamplingParams(max_tokens=5),
            room=Room(1),
            parsing=Parsing(**({"tools": TOOLS} | parsing)),
        )

    def take_apart(self, text, cuts=(), *, tools="", reasoning="", **parsing):
        """Text, reasoning and calls (name, arguments) of an answer that came in pieces."""
        job = self.job(reasoning=bool(reasoning), **parsing)
        parser = self.parsers(tools, reasoning).parser(job)
        edges = [0, *sorted(cuts), len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(edges)]
        parts = [*map(parser.feed, pieces), parser.end()]
        calls = {}
        for part in parts:
            for delta in part.calls:
                if delta.index not in calls:
                    assert delta.id
                    assert delta.name
                    calls[delta.index] = [delta.id, delta.name, ""]
                else:
                    assert (delta.id, delta.name) == ("", "")
                calls[delta.index][2] += delta.arguments
        assert list(calls) == list(range(len(calls)))
        assert len({call[0] for call in calls.values()}) == len(calls)
        said = "".join(part.text for part in parts)
        thought = "".join(part.reasoning for part in parts)
        return said, thought, [tuple(call[1:]) for call in calls.values()]


@pytest.fixture(scope="session")
def bench():
    """Parsers are loaded once."""
    return Workbench()
