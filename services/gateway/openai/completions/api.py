"""The completions endpoint, as far as it differs from others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from libs.text import ModelText
from proto.openai.completions import CompletionRequest
from proto.openai.drawing import MAX_CHOICES
from proto.sampling import Guide
from proto.workers import Feature
from services.gateway.openai.answers import Asked
from services.gateway.openai.bodies import BodyReader, invalid, unsupported
from services.gateway.openai.completions.prompts import Given, encode_given, given_prompts
from services.gateway.openai.completions.shape import CompletionShape
from services.gateway.openai.fields import COMPLETION_FIELDS
from services.gateway.openai.guides import guide_of
from services.gateway.openai.requests import Asker, Prompt, Wish, digest_of, spread
from services.gateway.openai.sampling import check_drawing, check_tokens, max_tokens, sampling_of

__all__ = ["CompletionApi"]

_DEFAULT_TOKENS = 16
_READER = BodyReader(CompletionRequest, COMPLETION_FIELDS)


@dataclass(frozen=True, slots=True)
class CompletionApi:
    """Implements `services.gateway.openai.endpoint.Api`."""

    route: str = "/v1/completions"
    operation: str = "text_completion"
    prefix: str = "cmpl-"

    def read(self, body: bytes) -> CompletionRequest:
        """Return the request in a body.

        Raises:
            PdbusError: it is not valid; the field at fault is named.
        """
        request = _READER.read(body)
        check_drawing(request)
        if request.stream_options is not None and not request.stream:
            raise invalid("stream_options", "It is only allowed with 'stream'.")
        if request.best_of is not None and request.best_of != (request.n or 1):
            raise unsupported("best_of", "Only the value of 'n' is supported.")
        if request.echo and request.logprobs is not None:
            raise unsupported("echo", "It is not supported beside 'logprobs'.")
        return request

    async def ask(self, request: CompletionRequest, asker: Asker) -> Asked:
        """Return the calls of a request.

        Raises:
            PdbusError: unknown model, unusable prompts or guides, something that its workers
                cannot do, or no room in the model's context.
        """
        text, context_tokens = asker.texts.find(request.model)
        check_tokens(request, text.tokenizer.vocabulary)
        given, each = given_prompts(request.prompt), request.n or 1
        if len(given) * each > MAX_CHOICES:
            raise invalid("prompt", f"prompts times 'n' must not exceed {MAX_CHOICES}.")
        guided = guide_of(request, request.response_format)
        asker.texts.check_features(request.model, dict(_needed(request, guided)))
        guide = guided[1] if guided else None
        prompts = [
            await _prompt(request, prompt, text, context_tokens, asker, guide) for prompt in given
        ]
        wish = Wish(
            model=request.model,
            digest=digest_of(request, asker.tenant),
            choices=each,
            cache_salt=request.cache_salt or "",
            priority=request.priority or 0,
        )
        options = request.stream_options
        skips = request.skip_special_tokens is not False
        return Asked(
            calls=spread(asker, wish, prompts),
            choices_a_prompt=each,
            stream=bool(request.stream),
            shape=CompletionShape(
                echoes=_echoes(request, given, prompts, text),
                choices_a_prompt=each,
                include_usage=bool(options is not None and options.include_usage),
                tokenizer=text.tokenizer if request.logprobs is not None else None,
                skips_special=skips,
            ),
            guided=guided[0] if guided else "",
        )


async def _prompt(
    request: CompletionRequest,
    given: Given,
    text: ModelText,
    context_tokens: int,
    asker: Asker,
    guide: Guide | None,
) -> Prompt:
    ids = await encode_given(text, given, context_tokens=context_tokens)
    limit = max_tokens(
        request.max_completion_tokens or request.max_tokens or _DEFAULT_TOKENS,
        ids.tokens,
        context_tokens,
        asker.rules,
        param="prompt",
    )
    return Prompt(ids, sampling_of(request, limit, logprobs=request.logprobs, guide=guide))


def _needed(
    request: CompletionRequest, guided: tuple[str, Guide] | None
) -> Iterator[tuple[Feature, str]]:
    if guided is not None:
        yield Feature.GUIDES, guided[0]
    if request.logprobs is not None:
        yield Feature.LOGPROBS, "logprobs"


def _echoes(
    request: CompletionRequest, given: tuple[Given, ...], prompts: list[Prompt], text: ModelText
) -> tuple[str, ...]:
    """Return what stands before the answers to each prompt."""
    if not request.echo:
        return ("",) * len(given)
    skip = request.skip_special_tokens is not False
    return tuple(
        text.tokenizer.decode(prompt.ids.ids, skip_special=skip) if one.text is None else one.text
        for one, prompt in zip(given, prompts, strict=True)
    )
