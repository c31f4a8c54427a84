"""What the two endpoints do: pure but for the time that a template may tell."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from libs.clock.api import Clock
from libs.text import ModelText
from libs.text.tokenizer import pack_ids, unpack_ids
from proto.openai.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from services.gateway.openai.bodies import BodyReader, invalid
from services.gateway.openai.prompts import (
    Setting,
    check_messages,
    render_chat,
    template_values,
)
from services.gateway.openai.tokenize.fields import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from services.gateway.openai.tools import choose

__all__ = ["Detokenizing", "Model", "Tokenizing"]

_WITH_MESSAGES = (
    *("tools", "chat_template_kwargs", "reasoning_effort"),
    *("add_generation_prompt", "continue_final_message"),
)


@dataclass(frozen=True, slots=True)
class Model:
    """The model that is asked."""

    name: str
    text: ModelText
    context_tokens: int


class Tokenizing:
    """`/tokenize`."""

    route = "/tokenize"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reader = BodyReader(TokenizeRequest, TOKENIZE_FIELDS)

    def read(self, body: bytes) -> TokenizeRequest:
        """Return the request in a body.

        Raises:
            PdbusError: it is not valid; the field at fault is named.
        """
        request = self._reader.read(body)
        if (request.prompt is None) is (request.messages is None):
            raise invalid("prompt", "either this or 'messages' is expected.")
        if request.messages is not None:
            if request.add_special_tokens:
                raise invalid("add_special_tokens", "the template of messages writes them.")
            check_messages(request.messages)
        else:
            for name in _WITH_MESSAGES:
                if getattr(request, name) is not None:
                    raise invalid(name, "it is only allowed with 'messages'.")
        return request

    def answer(self, request: TokenizeRequest, model: Model) -> msgspec.Struct:
        """Return the tokens; takes long for long texts.

        Raises:
            PdbusError: a tool is not valid, or the model's template does not accept the messages.
        """
        prompt = request.prompt
        if prompt is None:
            prompt = render_chat(
                model.text,
                request.messages or [],
                unix_ms=self._clock.unix_ms(),
                setting=_setting(request, model.text),
            )
        special = request.prompt is not None and request.add_special_tokens is not False
        tokens = unpack_ids(model.text.tokenizer.encode(prompt, add_special=special))
        return Tokenized(
            model=model.name,
            tokens=tokens,
            count=len(tokens),
            max_model_len=model.context_tokens,
        )


class Detokenizing:
    """`/detokenize`."""

    route = "/detokenize"

    def __init__(self) -> None:
        self._reader = BodyReader(DetokenizeRequest, DETOKENIZE_FIELDS)

    def read(self, body: bytes) -> DetokenizeRequest:
        """Return the request in a body.

        Raises:
            PdbusError: it is not valid; the field at fault is named.
        """
        return self._reader.read(body)

    def answer(self, request: DetokenizeRequest, model: Model) -> msgspec.Struct:
        """Return the text.

        Raises:
            PdbusError: a token is not in the vocabulary.
        """
        vocabulary = model.text.tokenizer.vocabulary
        for index, token in enumerate(request.tokens):
            if token >= vocabulary:
                raise invalid(f"tokens[{index}]", f"the vocabulary has {vocabulary} tokens.")
        skip = bool(request.skip_special_tokens)
        text = model.text.tokenizer.decode(pack_ids(request.tokens), skip_special=skip)
        return Detokenized(model=model.name, text=text, prompt=text)


def _setting(request: TokenizeRequest, text: ModelText) -> Setting:
    return Setting(
        tools=choose(request.tools, None, parallel=True).shown,
        values=template_values(text, request.chat_template_kwargs, request.reasoning_effort),
        ask=request.add_generation_prompt is not False,
        go_on=bool(request.continue_final_message),
    )
