"""Whatever a model says, its stream and its whole answer have the same content. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.text import ModelText
from proto.gateway import FinishReason
from proto.ids import RequestId
from proto.ledger import Usage
from proto.output import CallDelta, Details, TokenLogprob
from services.gateway.api import Delta
from services.gateway.openai.answers import Said
from services.gateway.openai.chat.shape import ChatShape
from services.gateway.openai.completions.shape import CompletionShape
from services.gateway.openai.frames import Head
from tests.unit.services.gateway.rig import events_of

HEAD = Head(RequestId("1"), 5, "m")
USAGE = Usage(prompt_tokens=3, completion_tokens=9, reasoning_tokens=2)
CHOICES = 3

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
chances = st.floats(max_value=0.0, allow_nan=False)
tokens = st.integers(0, 300)
"""Some of them beyond the vocabulary."""
logprobs = st.builds(
    TokenLogprob,
    token=tokens,
    logprob=chances,
    top=st.lists(st.tuples(tokens, chances), max_size=2).map(tuple),
)


@st.composite
def said(draw: st.DrawFn) -> list[Delta]:
    """One choice: deltas in which calls begin with a name and go on in any order."""
    begun: set[int] = set()
    found: list[Delta] = []
    for _ in range(draw(st.integers(0, 6))):
        calls: list[CallDelta] = []
        for index in draw(st.lists(st.integers(0, 2), max_size=3)):
            named = {} if index in begun else {"id": f"call_{index}", "name": f"f{index}"}
            begun.add(index)
            calls.append(CallDelta(index=index, arguments=draw(texts), **named))
        details = Details(
            reasoning=draw(texts),
            calls=tuple(calls),
            logprobs=tuple(draw(st.lists(logprobs, max_size=2))),
        )
        plain = draw(st.booleans())
        found.append(Delta(b"\0\0\0\0", draw(texts), details=None if plain else details))
        if plain:
            begun -= {call.index for call in calls if call.name}
    found.append(Delta(b"", "", draw(st.sampled_from(FinishReason)), USAGE))
    return found


mixed = st.lists(said(), min_size=CHOICES, max_size=CHOICES)


def both(shape: Any, answers: list[list[Delta]], order: list[int]) -> tuple[Any, list[Any]]:
    """Return the whole answer and the chunks of the stream, its choices in any order."""
    frames = shape.frames(HEAD)
    stream, gathered = frames.opening, [Said() for _ in answers]
    left = [list(answer) for answer in answers]
    turns = [index % CHOICES for index in order] + [n for n in range(CHOICES) for _ in left[n]]
    for index in turns:
        if not left[index]:
            continue
        delta = left[index].pop(0)
        gathered[index].take(delta)
        stream += frames.delta(index, delta)
        if delta.finish is not None:
            stream += frames.finish(index, delta.finish)
    stream += frames.end(USAGE)
    *chunks, done = events_of(stream)
    assert done == "[DONE]"
    whole = msgspec.json.decode(msgspec.json.encode(shape.whole(HEAD, gathered, USAGE)))
    return whole, chunks


@settings(deadline=None)
@given(mixed, st.lists(st.integers(0, 8), max_size=12), st.booleans(), st.booleans())
def test_chat(
    toy: ModelText, answers: list[list[Delta]], order: list[int], told: bool, one_call: bool
):
    """Text, reasoning, calls, log-probabilities and finish of each choice are the same."""
    tokenizer = toy.tokenizer if told else None
    shape = ChatShape(CHOICES, include_usage=True, tokenizer=tokenizer, one_call=one_call)
    whole, (*chunks, last) = both(shape, answers, order)
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        finishes = [entry["finish_reason"] for entry in mine]
        assert finishes == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        deltas = [entry["delta"] for entry in mine]
        message = choice["message"]
        assert "".join(d.get("content", "") for d in deltas) == (message["content"] or "")
        thoughts = "".join(d.get("reasoning_content", "") for d in deltas)
        assert thoughts == message.get("reasoning_content", "")
        calls: dict[int, dict[str, Any]] = {}
        for piece in (piece for d in deltas for piece in d.get("tool_calls", ())):
            call = calls.setdefault(piece["index"], {"function": {"arguments": ""}})
            call |= {key: piece[key] for key in ("id", "type") if key in piece}
            name = piece["function"].get("name", call["function"].get("name"))
            arguments = call["function"]["arguments"] + piece["function"]["arguments"]
            call["function"] = {"name": name, "arguments": arguments}
        assert [calls[index] for index in sorted(calls)] == message.get("tool_calls", [])
        entries = [e for entry in mine if entry["logprobs"] for e in entry["logprobs"]["content"]]
        assert entries == (choice["logprobs"]["content"] if told else [])


@settings(deadline=None)
@given(mixed, st.lists(st.integers(0, 8), max_size=12), st.booleans(), texts)
def test_completions(
    toy: ModelText, answers: list[list[Delta]], order: list[int], told: bool, echo: str
):
    """Text with its echo, four lists of log-probabilities, and finish are the same."""
    shape = CompletionShape(
        echoes=(echo,),
        choices_a_prompt=CHOICES,
        include_usage=True,
        tokenizer=toy.tokenizer if told else None,
    )
    whole, (*chunks, last) = both(shape, answers, order)
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        finishes = [entry["finish_reason"] for entry in mine]
        assert finishes == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        assert "".join(entry["text"] for entry in mine) == choice["text"]
        parts = [entry["logprobs"] for entry in mine if entry["logprobs"]]
        for key, values in (choice["logprobs"] or {}).items():
            assert [value for part in parts for value in part[key]] == values
