"""`POST /v1/completions`: the request, its answer, and the chunks of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from proto.gateway import FinishReason
from proto.openai.api import Answer, Body
from proto.openai.drawing import (
    MAX_CHOICES,
    Bias,
    Count,
    Limit,
    MinP,
    Penalty,
    Priority,
    Repetition,
    ResponseFormat,
    Salt,
    Seed,
    Stop,
    StopIds,
    StreamOptions,
    Temperature,
    TokenId,
    TopK,
    TopP,
)
from proto.openai.usage import UsageInfo

__all__ = [
    "Completion",
    "CompletionChoice",
    "CompletionChunk",
    "CompletionChunkChoice",
    "CompletionLogprobs",
    "CompletionRequest",
]

_Part = str | TokenId | list[TokenId]


class CompletionRequest(Body, frozen=True, kw_only=True):
    """The fields that are carried out; None means "not given" everywhere."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    prompt: str | Annotated[list[_Part], Meta(min_length=1)]
    """A text, texts, the ids of one prompt, or lists of ids."""
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Bias | None = None
    response_format: ResponseFormat | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    min_tokens: Count | None = None
    repetition_penalty: Repetition | None = None
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | dict[str, Any] | None = None
    priority: Priority | None = None
    cache_salt: Salt | None = None


class CompletionLogprobs(Answer, frozen=True, kw_only=True):
    """How likely the tokens were; four lists of the same length."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    """Natural logarithms; -9999 for what could not be drawn."""
    top_logprobs: tuple[dict[str, float], ...]
    """The likeliest tokens and the drawn one."""
    text_offset: tuple[int, ...]
    """Characters of the text before each token."""


class CompletionChoice(Answer, frozen=True, kw_only=True):
    """One continuation of one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason


class Completion(Answer, frozen=True, kw_only=True):
    """The whole answer."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    """Unix seconds."""
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: UsageInfo


class CompletionChunkChoice(Answer, frozen=True, kw_only=True):
    """What a chunk adds to one continuation."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None


class CompletionChunk(Answer, frozen=True, kw_only=True):
    """One event of the stream.

    `usage` is left out unless the client asked for it; then it is null until the last chunk.
    """

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    """Unix seconds."""
    model: str
    choices: tuple[CompletionChunkChoice, ...]
    usage: UsageInfo | UnsetType | None = UNSET
