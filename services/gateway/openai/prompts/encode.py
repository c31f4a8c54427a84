"""From a prompt's text to token ids, which must fit the model's context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from libs.text import ModelText
from proto.errors import ErrorCode, PdbusError
from services.gateway.prompt import PromptIds

__all__ = ["INLINE_CHARS", "encode_prompt"]

INLINE_CHARS = 16_384
"""Longer prompts are encoded on a thread, so that they do not hold up other streams."""


async def encode_prompt(
    text: ModelText,
    prompt: str,
    *,
    context_tokens: int,
    param: str,
    answer_tokens: int | None = None,
    add_special: bool = False,
) -> PromptIds:
    """Return the ids of a prompt.

    Args:
        param: the field that it comes from.
        answer_tokens: room that its answer needs: where both certainly fit, the ids of a short
            prompt are left to be worked out when they are needed. None for at once.
        add_special: whether the tokenizer frames it with its own tokens; a template has done so.

    Raises:
        PdbusError: it is so long that it need not be encoded to know that it does not fit.
    """
    fewest = text.tokenizer.fewest_tokens(prompt)
    if fewest > context_tokens:
        raise PdbusError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"The model's context is {context_tokens} tokens, and there are {fewest} at least in"
            f" the {param}.",
            param=param,
        )
    encode = _way(text, add_special=add_special)
    if len(prompt) > INLINE_CHARS:
        return PromptIds(await asyncio.to_thread(encode, prompt))
    most = text.tokenizer.most_tokens(prompt) if answer_tokens is not None else None
    if most is None or most + (answer_tokens or 0) > context_tokens:
        return PromptIds(encode(prompt))
    return PromptIds(partial(encode, prompt), most=most)


def _way(text: ModelText, *, add_special: bool) -> Callable[[str], bytes]:
    if add_special:
        return partial(text.tokenizer.encode, add_special=True)
    return text.surround.encode
