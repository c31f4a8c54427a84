"""The chat endpoint, as far as it differs from others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from libs.text import ModelText
from proto.openai.chat import ChatRequest
from proto.openai.drawing import StreamOptions
from proto.sampling import Guide
from proto.workers import Feature
from services.gateway.openai.answers import Asked
from services.gateway.openai.bodies import BodyReader, invalid
from services.gateway.openai.chat.shape import ChatShape
from services.gateway.openai.fields import CHAT_FIELDS
from services.gateway.openai.guides import guide_of
from services.gateway.openai.prompts import (
    Setting,
    check_messages,
    encode_prompt,
    render_chat,
    template_values,
)
from services.gateway.openai.requests import Asker, Prompt, Wish, digest_of, spread
from services.gateway.openai.sampling import check_drawing, check_tokens, max_tokens, sampling_of
from services.gateway.openai.tools import Chosen, choose

__all__ = ["ChatApi"]

_READER = BodyReader(ChatRequest, CHAT_FIELDS)


@dataclass(frozen=True, slots=True)
class ChatApi:
    """Implements `services.gateway.openai.endpoint.Api`."""

    route: str = "/v1/chat/completions"
    operation: str = "chat"
    prefix: str = "chatcmpl-"

    def read(self, body: bytes) -> ChatRequest:
        """Return the request in a body.

        Raises:
            PdbusError: it is not valid; the field at fault is named.
        """
        request = _READER.read(body)
        check_drawing(request)
        check_messages(request.messages)
        _check_stream(request.stream_options, stream=bool(request.stream))
        _check_logprobs(request)
        _check_opening(request)
        return request

    async def ask(self, request: ChatRequest, asker: Asker) -> Asked:
        """Return the calls of a request.

        Raises:
            PdbusError: unknown model, unusable messages, tools or guides, something that its
                workers cannot do, or no room in the model's context.
        """
        text, context_tokens = asker.texts.find(request.model)
        check_tokens(request, text.tokenizer.vocabulary)
        parallel = request.parallel_tool_calls is not False
        chosen = choose(request.tools, request.tool_choice, parallel=parallel)
        guided = guide_of(request, request.response_format)
        _check_together(guided, chosen)
        asker.texts.check_features(request.model, dict(_needed(request, guided, chosen)))
        setting = _setting(request, chosen, text)
        now_ms = asker.clock.unix_ms()
        rendered = render_chat(text, request.messages, unix_ms=now_ms, setting=setting)
        asked = request.max_completion_tokens or request.max_tokens
        ids = await encode_prompt(
            text,
            rendered,
            context_tokens=context_tokens,
            answer_tokens=asked or asker.rules.default_max_tokens,
            param="messages",
        )
        limit = max_tokens(asked, ids.most, context_tokens, asker.rules, param="messages")
        sampling = sampling_of(
            request,
            limit,
            logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            guide=chosen.guide or (guided[1] if guided else None),
        )
        reasoning = request.separate_reasoning is not False and asker.texts.can(
            request.model, Feature.REASONING
        )
        wish = Wish(
            model=request.model,
            digest=digest_of(request, asker.tenant),
            choices=request.n or 1,
            parsing=chosen.parsing(reasoning=reasoning),
            cache_salt=request.cache_salt or "",
            priority=request.priority or 0,
        )
        options = request.stream_options
        return Asked(
            calls=spread(asker, wish, [Prompt(ids, sampling)]),
            choices_a_prompt=wish.choices,
            stream=bool(request.stream),
            shape=ChatShape(
                choices=wish.choices,
                include_usage=bool(options is not None and options.include_usage),
                tokenizer=text.tokenizer if request.logprobs else None,
                one_call=not parallel,
            ),
            guided="tool_choice" if chosen.guide else guided[0] if guided else "",
        )


def _setting(request: ChatRequest, chosen: Chosen, text: ModelText) -> Setting:
    return Setting(
        tools=chosen.shown,
        values=template_values(text, request.chat_template_kwargs, request.reasoning_effort),
        ask=request.add_generation_prompt is not False,
        go_on=bool(request.continue_final_message),
    )


def _needed(
    request: ChatRequest, guided: tuple[str, Guide] | None, chosen: Chosen
) -> Iterator[tuple[Feature, str]]:
    """Yield what the workers must be able to do, and the field that asks for it."""
    if chosen.tools:
        yield Feature.TOOLS, "tools"
    if chosen.guide is not None:
        yield Feature.GUIDES, "tool_choice"
    elif guided is not None:
        yield Feature.GUIDES, guided[0]
    if request.logprobs:
        yield Feature.LOGPROBS, "logprobs"


def _check_together(guided: tuple[str, Guide] | None, chosen: Chosen) -> None:
    if guided is not None and chosen.tools:
        # The grammar would forbid every call, or the call every match.
        raise invalid(guided[0], "it cannot be given beside 'tools' that may be called.")


def _check_stream(options: StreamOptions | None, *, stream: bool) -> None:
    if options is not None and not stream:
        raise invalid("stream_options", "It is only allowed with 'stream'.")


def _check_logprobs(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "It is only allowed with 'logprobs'.")


def _check_opening(request: ChatRequest) -> None:
    if request.continue_final_message and request.add_generation_prompt:
        raise invalid("continue_final_message", "It excludes 'add_generation_prompt'.")
