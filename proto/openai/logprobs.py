"""How likely the tokens of a chat answer were."""

from __future__ import annotations

from proto.openai.api import Answer

__all__ = ["ChoiceLogprobs", "TokenInfo", "TopToken"]


class TopToken(Answer, frozen=True, kw_only=True):
    """A token that could have stood there."""

    token: str
    """Its text; bytes that are no whole character are written as `\\xNN`."""
    logprob: float
    """Natural logarithm; -9999 for what could not be drawn."""
    bytes: tuple[int, ...] | None
    """UTF-8; characters may be spread over several tokens."""


class TokenInfo(TopToken, frozen=True, kw_only=True):
    """A token of the answer."""

    top_logprobs: tuple[TopToken, ...]
    """The likeliest tokens, best first."""


class ChoiceLogprobs(Answer, frozen=True, kw_only=True):
    """One entry a token."""

    content: tuple[TokenInfo, ...]
    refusal: None = None
