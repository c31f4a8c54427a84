"""What is counted about one generation, and how it is told to metrics, span and log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache

import msgspec

from libs.clock.api import Clock
from libs.telemetry import (
    attributes,
    count,
    names,
    observer,
    recording,
    set_attributes,
)
from proto.gateway import FinishReason
from proto.ledger import Usage
from services.gateway.api import Call
from services.gateway.edge import Exchange

__all__ = ["Stage", "Tally"]

_PROVIDER = "pdbus"
_NO_MODEL = "other"
"""Label for requests whose model is not one of ours: names from outside never become labels."""


class Stage(StrEnum):
    """How far a request has come."""

    READINESS = "readiness"
    BODY = "body"
    PROMPT = "prompt"
    PLACE = "place"
    FIRST = "first"
    STREAM = "stream"


class _Meters:
    """The distributions of one operation and model, whose labels stay but for how it ended."""

    def __init__(self, operation: str, model: str) -> None:
        self._model = model
        self._common = {
            attributes.GEN_AI_OPERATION: operation,
            attributes.GEN_AI_PROVIDER: _PROVIDER,
            attributes.GEN_AI_REQUEST_MODEL: model,
            attributes.GEN_AI_RESPONSE_MODEL: model,
        }
        self.first = observer(names.GATEWAY_TTFT, model_name=model)
        self.first_gen_ai = observer(names.GEN_AI_TIME_TO_FIRST_TOKEN, **self._common)
        self.later = observer(names.GATEWAY_ITL, model_name=model)
        self.later_gen_ai = observer(names.GEN_AI_TIME_PER_OUTPUT_TOKEN, **self._common)
        self.asked = observer(names.GATEWAY_INPUT_TOKENS, model_name=model)
        self.said = observer(names.GATEWAY_OUTPUT_TOKENS, model_name=model)

        self._took = lru_cache(maxsize=64)(self._ended)

    def took(self, outcome: str, code: str, total_s: float) -> None:
        """Give the time of a whole request."""
        whole, whole_gen_ai = self._took(outcome, code)
        whole(total_s)
        whole_gen_ai(total_s)

    def _ended(
        self, outcome: str, code: str
    ) -> tuple[Callable[[float], None], Callable[[float], None]]:
        return (
            observer(names.GATEWAY_DURATION, model_name=self._model, outcome=outcome),
            observer(
                names.GEN_AI_REQUEST_DURATION, **{**self._common, attributes.ERROR_TYPE: code}
            ),
        )


_meters = lru_cache(maxsize=64)(_Meters)
"""Models are those that this gateway speaks for, and so few."""

_BEFORE_PLACE = frozenset({Stage.READINESS, Stage.BODY, Stage.PROMPT})


class Tally(msgspec.Struct, eq=False):
    """The figures of one request."""

    clock: Clock
    started_s: float
    operation: str
    """GenAI's word for the endpoint: `chat`."""
    stage: Stage = Stage.READINESS
    call: Call | None = None
    streaming: bool = False
    first_s: float | None = None
    last_s: float | None = None
    finishes: Sequence[FinishReason] = ()
    """Of each choice, once all have ended."""
    usage: Usage | None = None
    """Of all choices together."""

    def take(self, now_s: float) -> None:
        """Note that a part of the answer has come."""
        self.last_s = now_s
        if self.first_s is None:
            self.first_s = now_s
            self.stage = Stage.STREAM

    def end(self, finishes: Sequence[FinishReason], usage: Usage) -> None:
        """Note that the answer is complete."""
        self.finishes, self.usage = finishes, usage

    def ask(self, calls: Sequence[Call], *, prompts: Sequence[Call], streaming: bool) -> None:
        """Note what is asked for, for the span too; each prompt is there once."""
        call = self.call = calls[0]
        self.streaming = streaming
        self.stage = Stage.PLACE
        if not recording():
            return
        set_attributes(
            **{
                attributes.GEN_AI_OPERATION: self.operation,
                attributes.GEN_AI_PROVIDER: _PROVIDER,
                attributes.GEN_AI_REQUEST_MODEL: call.model,
                attributes.GEN_AI_REQUEST_MAX_TOKENS: call.sampling.max_tokens,
                attributes.GEN_AI_REQUEST_TEMPERATURE: call.sampling.temperature,
                attributes.GEN_AI_REQUEST_TOP_P: call.sampling.top_p,
                attributes.GEN_AI_REQUEST_STREAM: streaming,
                attributes.GEN_AI_INPUT_TOKENS: sum(one.prompt_tokens for one in prompts),
            }
        )

    def report(self, exchange: Exchange, answer_id: str) -> None:
        """Tell what happened, once, at the end."""
        model = self.call.model if self.call is not None else _NO_MODEL
        code = str(exchange.failure.code) if exchange.failure is not None else ""
        count(
            names.GATEWAY_REQUESTS,
            model_name=model,
            endpoint=exchange.route,
            outcome=exchange.outcome,
            error_code=code,
            streaming=self.streaming,
        )
        if exchange.abandoned:
            count(names.GATEWAY_DISCONNECTS, stage=self.stage)
        elif self.stage in _BEFORE_PLACE:
            count(
                names.GATEWAY_REJECTED, endpoint=exchange.route, error_code=code, reason=self.stage
            )
        if self.call is None:
            exchange.facts["stage"] = str(self.stage)
            return
        self._times(exchange, model, code)
        self._tokens(exchange, model, answer_id)

    def _times(self, exchange: Exchange, model: str, code: str) -> None:
        meters = _meters(self.operation, model)
        total_s = self.clock.monotonic() - self.started_s
        meters.took(exchange.outcome, code, total_s)
        exchange.facts.update(model=model, stream=self.streaming, stage=str(self.stage))
        if self.first_s is None or self.last_s is None:
            return
        first_s = self.first_s - self.started_s
        meters.first(first_s)
        meters.first_gen_ai(first_s)
        exchange.facts["first_token_s"] = round(first_s, 4)
        if recording():
            set_attributes(**{attributes.GEN_AI_TIME_TO_FIRST_CHUNK: round(first_s, 6)})
        later = self.usage.completion_tokens - 1 if self.usage is not None else 0
        if later > 0:
            # The mean over the request: one value a token would cost more than the token's write.
            each_s = (self.last_s - self.first_s) / later
            meters.later(each_s)
            meters.later_gen_ai(each_s)

    def _tokens(self, exchange: Exchange, model: str, answer_id: str) -> None:
        if self.usage is None:
            return
        usage = self.usage
        meters = _meters(self.operation, model)
        meters.asked(usage.prompt_tokens)
        meters.said(usage.completion_tokens)
        exchange.facts.update(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            finish=",".join(self.finishes),
        )
        if not recording():
            return
        set_attributes(
            **{
                attributes.GEN_AI_RESPONSE_MODEL: model,
                attributes.GEN_AI_RESPONSE_ID: answer_id,
                attributes.GEN_AI_FINISH_REASONS: tuple(map(str, self.finishes)),
                attributes.GEN_AI_INPUT_TOKENS: usage.prompt_tokens,
                attributes.GEN_AI_OUTPUT_TOKENS: usage.completion_tokens,
                attributes.GEN_AI_CACHED_TOKENS: usage.cached_tokens,
            }
        )
