"""What stands in an answer beside its plain text, and how decode is to find it there."""

from __future__ import annotations

from proto.base import Message

__all__ = ["CallDelta", "Details", "Parsing", "TokenLogprob"]


class Parsing(Message, frozen=True, kw_only=True):
    """How the text of an answer becomes structure. Only decode reads it."""

    tools: str = ""
    """JSON array of OpenAI's `tools`; empty where no call may come."""
    forced: bool = False
    """The answer is a JSON array of calls and nothing else: a grammar makes sure of it."""
    reasoning: bool = False
    """Whether reasoning is told apart from the answer."""


class CallDelta(Message, frozen=True, kw_only=True, array_like=True, tag="t"):
    """A piece of one tool call."""

    index: int
    """Which call of the answer, from 0."""
    id: str = ""
    """With the first piece only, as `name`."""
    name: str = ""
    arguments: str = ""
    """A part of the arguments' JSON text."""


class TokenLogprob(Message, frozen=True, kw_only=True, array_like=True, tag="l"):
    """How likely a token was, and which others were."""

    token: int
    logprob: float
    """Natural logarithm."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their log-probabilities, best first."""


class Details(Message, frozen=True, kw_only=True, array_like=True, tag="d"):
    """What some tokens brought beside plain text."""

    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One entry a token of the chunk, where asked for."""
    reasoning_tokens: int = 0
    """With the end: tokens of the whole answer that were reasoning."""
