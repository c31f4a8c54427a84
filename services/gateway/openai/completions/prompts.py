"""The prompts of a completion request: one or several, as texts or as token ids."""

from __future__ import annotations

from dataclasses import dataclass

from libs.text import ModelText
from libs.text.tokenizer import pack_ids
from services.gateway.openai.bodies import invalid
from services.gateway.openai.prompts import encode_prompt
from services.gateway.prompt import PromptIds

__all__ = ["Given", "encode_given", "given_prompts"]

_Part = str | int | list[int]


@dataclass(frozen=True, slots=True)
class Given:
    """One prompt, as the client wrote it."""

    text: str | None = None
    ids: tuple[int, ...] = ()
    """Where there is no text."""


def given_prompts(prompt: str | list[_Part]) -> tuple[Given, ...]:
    """Return the prompts of a request, in order.

    Raises:
        PdbusError: texts and ids are mixed, or a prompt is empty.
    """
    if isinstance(prompt, str):
        found = (Given(text=prompt),)
    elif all(isinstance(part, int) for part in prompt):
        found = (Given(ids=tuple(part for part in prompt if isinstance(part, int))),)
    elif all(isinstance(part, str) for part in prompt):
        found = tuple(Given(text=part) for part in prompt if isinstance(part, str))
    elif all(isinstance(part, list) for part in prompt):
        found = tuple(Given(ids=tuple(part)) for part in prompt if isinstance(part, list))
    else:
        raise invalid("prompt", "texts and token ids cannot be mixed.")
    if not all(given.text or given.ids for given in found):
        raise invalid("prompt", "it must not be empty.")
    return found


async def encode_given(text: ModelText, given: Given, *, context_tokens: int) -> PromptIds:
    """Return the ids of a prompt.

    Raises:
        PdbusError: a token is not in the vocabulary, or the prompt cannot fit.
    """
    if given.text is not None:
        return await encode_prompt(
            text, given.text, context_tokens=context_tokens, param="prompt", add_special=True
        )
    vocabulary = text.tokenizer.vocabulary
    if max(given.ids) >= vocabulary:
        raise invalid("prompt", f"the vocabulary has {vocabulary} tokens.")
    return PromptIds(pack_ids(list(given.ids)))
