"""How the next token is drawn, in words that no engine owns."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from proto.base import Message

__all__ = ["SamplingParams"]


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
