"""From a validated chat request to a call: prompt, limits, sampling, digest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import msgspec

from libs.clock.api import Clock
from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId, TenantHash
from proto.ledger import Mode
from proto.openai.chat import ChatRequest
from proto.sampling import SamplingParams
from services.gateway.api import Call, Recover
from services.gateway.openai.texts import Texts, prompt_ids
from services.gateway.openai.validate import stops_of

__all__ = ["Asked", "CallRules", "ask_chat", "key_of", "mode_of"]

MODE_HEADER = "x-pdbus-mode"
KEY_HEADER = "idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class CallRules:
    """What the operator decides about every call."""

    request_timeout_s: float
    default_max_tokens: int
    """Answer tokens where the client names no limit (and the context has room)."""
    recover: Recover = Recover.NEVER
    """Whether answers may go on with another decode after their first token."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call, and how its answer is to be given."""

    call: Call
    stream: bool
    include_usage: bool


async def ask_chat(  # noqa: PLR0913 - one argument a source
    request: ChatRequest,
    *,
    rid: RequestId,
    tenant: TenantHash,
    mode: Mode | None,
    key: str | None,
    texts: Texts,
    clock: Clock,
    rules: CallRules,
) -> Asked:
    """Return the call of a chat request.

    Raises:
        PdbusError: unknown model, unusable messages, or no room in the model's context.
    """
    text, context_tokens = texts.find(request.model)
    now_ms = clock.unix_ms()
    ids = await prompt_ids(text, request.messages, context_tokens=context_tokens, unix_ms=now_ms)
    prompt_tokens = len(ids) // _ID_BYTES
    _check_token_ids(request, text.tokenizer.vocabulary)
    call = Call(
        rid=rid,
        tenant=tenant,
        model=request.model,
        input_ids=ids,
        prompt_tokens=prompt_tokens,
        sampling=_sampling(request, _max_tokens(request, prompt_tokens, context_tokens, rules)),
        digest=_digest(request, tenant),
        deadline_ms=now_ms + round(rules.request_timeout_s * 1000),
        mode=mode,
        key=key,
        recover=rules.recover,
    )
    options = request.stream_options
    return Asked(
        call=call,
        stream=bool(request.stream),
        include_usage=bool(options is not None and options.include_usage),
    )


def mode_of(value: str | None) -> Mode | None:
    """Return the mode that a client asks for with the header `x-pdbus-mode`.

    Raises:
        PdbusError: it is none.
    """
    if value is None or value == "auto":
        return None
    try:
        return Mode(value)
    except ValueError as error:
        raise PdbusError(
            ErrorCode.INVALID_VALUE,
            f"Invalid header '{MODE_HEADER}': auto, disaggregated or aggregated is expected.",
            param=MODE_HEADER,
        ) from error


def key_of(value: str | None) -> str | None:
    """Return the client's idempotency key.

    Raises:
        PdbusError: it is longer than 255 characters, or not printable ASCII without spaces.
    """
    if value is None:
        return None
    if not _KEY.fullmatch(value):
        raise PdbusError(
            ErrorCode.INVALID_VALUE,
            f"Invalid header '{KEY_HEADER}': 1 to 255 printable ASCII characters are expected.",
            param=KEY_HEADER,
        )
    return value


def _max_tokens(
    request: ChatRequest, prompt_tokens: int, context_tokens: int, rules: CallRules
) -> int:
    """Return the limit of the answer; the newer name of the field wins."""
    room = context_tokens - prompt_tokens
    asked = request.max_completion_tokens or request.max_tokens
    if asked is None:
        if room < 1:
            raise PdbusError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"The model's context is {context_tokens} tokens, and the messages have"
                f" {prompt_tokens}.",
                param="messages",
            )
        return min(room, rules.default_max_tokens)
    if asked > room:
        raise PdbusError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"The model's context is {context_tokens} tokens, and the request is for"
            f" {prompt_tokens + asked}: {prompt_tokens} in the messages and {asked} in the answer.",
            param="messages",
        )
    return asked


def _check_token_ids(request: ChatRequest, vocabulary: int) -> None:
    for index, token in enumerate(request.stop_token_ids or ()):
        if token >= vocabulary:
            param = f"stop_token_ids[{index}]"
            raise PdbusError(
                ErrorCode.INVALID_VALUE,
                f"Invalid '{param}': the vocabulary has {vocabulary} tokens.",
                param=param,
            )


def _sampling(request: ChatRequest, max_tokens: int) -> SamplingParams:
    """Map the fields that were given; all others keep the defaults of `SamplingParams`."""
    given = {
        name: value
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "ignore_eos"),
            *("frequency_penalty", "presence_penalty", "repetition_penalty"),
        )
        if (value := getattr(request, name)) is not None
    }
    return SamplingParams(
        max_tokens=max_tokens,
        stop=stops_of(request),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        **given,
    )


def _digest(request: ChatRequest, tenant: TenantHash) -> str:
    """Return the identity of what was asked: fields in a fixed order, whoever wrote the JSON."""
    return hashlib.sha256(tenant.encode() + b"\n" + msgspec.json.encode(request)).hexdigest()
