"""Tokens counted, as clients read them."""

from __future__ import annotations

from proto.ledger import Usage
from proto.openai.api import Answer

__all__ = ["PromptTokensDetails", "UsageInfo", "usage_info"]


class PromptTokensDetails(Answer, frozen=True, kw_only=True):
    """What became of the prompt's tokens."""

    cached_tokens: int = 0


class UsageInfo(Answer, frozen=True, kw_only=True):
    """OpenAI's `usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_info(usage: Usage) -> UsageInfo:
    """Return the public form of a count."""
    return UsageInfo(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
    )
