"""Tokens counted, as clients read them."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from proto.ledger import Usage
from proto.openai.api import Answer

__all__ = [
    "CompletionTokensDetails",
    "PromptTokensDetails",
    "UsageExtension",
    "UsageInfo",
    "usage_info",
]


class PromptTokensDetails(Answer, frozen=True, kw_only=True):
    """What became of the prompt's tokens."""

    cached_tokens: int = 0


class CompletionTokensDetails(Answer, frozen=True, kw_only=True):
    """What the tokens of an answer were."""

    reasoning_tokens: int = 0


class UsageExtension(Answer, frozen=True, kw_only=True):
    """What OpenAI's `usage` has no word for."""

    migrations: int
    """Times the answer went on with another decode after its first token."""


class UsageInfo(Answer, frozen=True, kw_only=True):
    """OpenAI's `usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    x_pdbus: UsageExtension | UnsetType = UNSET
    """Only where there is something to tell."""


def usage_info(usage: Usage) -> UsageInfo:
    """Return the public form of a count."""
    return UsageInfo(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        x_pdbus=UsageExtension(migrations=usage.migrations) if usage.migrations else UNSET,
    )
