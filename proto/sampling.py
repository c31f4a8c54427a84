"""How the next token is drawn, in words that no engine owns."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from proto.base import Message

__all__ = ["Guide", "GuideKind", "SamplingParams"]


class GuideKind(StrEnum):
    """In which language a guide is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"


class Guide(Message, frozen=True, kw_only=True):
    """What every answer must match."""

    kind: GuideKind
    text: str


class SamplingParams(Message, frozen=True, kw_only=True):
    """Sampling of one completion. Prefill and decode get the same value."""

    max_tokens: Annotated[int, Meta(ge=1)]
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: int = -1
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of tokens, by token id."""
    seed: int | None = None
    logprobs: int | None = None
    """Tokens whose log-probabilities come with each token, beside its own; None for none at all."""
    guide: Guide | None = None
    skip_special_tokens: bool = True
