"""From a prompt's text to token ids, which must fit the model's context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from libs.text import ModelText
from proto.errors import ErrorCode, PdbusError

__all__ = ["INLINE_CHARS", "encode_prompt"]

INLINE_CHARS = 16_384
"""Longer prompts are encoded on a thread, so that they do not hold up other streams."""


async def encode_prompt(
    text: ModelText, prompt: str, *, context_tokens: int, param: str, add_special: bool = False
) -> bytes:
    """Return the ids of a prompt as little-endian uint32.

    Args:
        param: the field that it comes from.
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
    if len(prompt) <= INLINE_CHARS:
        return encode(prompt)
    return await asyncio.to_thread(encode, prompt)


def _way(text: ModelText, *, add_special: bool) -> Callable[[str], bytes]:
    if add_special:
        return partial(text.tokenizer.encode, add_special=True)
    return text.surround.encode
