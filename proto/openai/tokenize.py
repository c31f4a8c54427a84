"""`POST /tokenize` and `POST /detokenize`: from text to token ids and back."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from proto.openai.api import Answer, Body
from proto.openai.chat import MAX_MESSAGES, Effort
from proto.openai.messages import Message
from proto.openai.tools import MAX_TOOLS, Tool

__all__ = ["MAX_IDS", "DetokenizeRequest", "Detokenized", "TokenizeRequest", "Tokenized"]

MAX_IDS = 1 << 20
"""Most token ids of a body."""

_Model = Annotated[str, Meta(min_length=1, max_length=256)]
_Id = Annotated[int, Meta(ge=0, lt=2**32)]


class TokenizeRequest(Body, frozen=True, kw_only=True):
    """A text, or a conversation as the model's template writes it. None means "not given"."""

    model: _Model | None = None
    """May be left out where one model is served."""
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """A conversation instead of a prompt."""
    add_special_tokens: bool | None = None
    """Whether a prompt gets what the tokenizer puts around a text; not with messages."""
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class Tokenized(Answer, frozen=True, kw_only=True):
    """The tokens of a text."""

    model: str
    tokens: list[int]
    count: int
    max_model_len: int
    """Most tokens of prompt and answer together."""


class DetokenizeRequest(Body, frozen=True, kw_only=True):
    """Token ids. None means "not given"."""

    model: _Model | None = None
    tokens: Annotated[list[_Id], Meta(max_length=MAX_IDS)]
    skip_special_tokens: bool | None = None


class Detokenized(Answer, frozen=True, kw_only=True):
    """The text of some tokens, under the two names that are in use."""

    model: str
    text: str
    prompt: str
