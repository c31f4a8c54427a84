"""How long an answer may become."""

from __future__ import annotations

from proto.errors import ErrorCode, PdbusError
from services.gateway.openai.rules import CallRules

__all__ = ["max_tokens"]


def max_tokens(
    asked: int | None, prompt_tokens: int, context_tokens: int, rules: CallRules, *, param: str
) -> int:
    """Return the limit of an answer in tokens.

    Args:
        asked: the client's limit; without one it is what the context leaves, bounded by the rules.
        param: the field that the prompt comes from.

    Raises:
        PdbusError: prompt and limit exceed the context.
    """
    room = context_tokens - prompt_tokens
    if asked is None:
        if room < 1:
            raise PdbusError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"The model's context is {context_tokens} tokens, and there are {prompt_tokens}"
                f" in the {param}.",
                param=param,
            )
        return min(room, rules.default_max_tokens)
    if asked > room:
        raise PdbusError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"The model's context is {context_tokens} tokens, and the request is for"
            f" {prompt_tokens + asked}: {prompt_tokens} in the {param} and {asked} in the answer.",
            param=param,
        )
    return asked
