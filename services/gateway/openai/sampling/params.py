"""The sampling fields that all endpoints share."""

from __future__ import annotations

from typing import Protocol

from proto.sampling import Guide, SamplingParams
from services.gateway.openai.bodies import invalid

__all__ = ["Drawing", "check_drawing", "check_tokens", "sampling_of"]

_PLAIN = (
    *("temperature", "top_p", "top_k", "min_p", "min_tokens", "ignore_eos", "seed"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "skip_special_tokens"),
)


class Drawing(Protocol):
    """A request, as far as it says how its answers are drawn; None means "not given"."""

    @property
    def stop(self) -> str | list[str] | None:
        """One stop string or several."""
        ...

    @property
    def stop_token_ids(self) -> list[int] | None:
        """Tokens that end the answer."""
        ...

    @property
    def logit_bias(self) -> dict[str, float] | None:
        """What is added to the logits of tokens, by their ids."""
        ...

    @property
    def top_k(self) -> int | None:
        """Most tokens to draw from; -1 for all."""
        ...

    @property
    def min_tokens(self) -> int | None:
        """Fewest tokens of an answer."""
        ...


def check_drawing(request: Drawing) -> None:
    """Refuse what the types of the fields cannot.

    Raises:
        PdbusError: a number is not allowed.
    """
    if request.top_k == 0:
        raise invalid("top_k", "-1 or at least 1 is expected.")


def check_tokens(request: Drawing, vocabulary: int) -> None:
    """Refuse tokens that the model does not have.

    Raises:
        PdbusError: a token is not in the vocabulary.
    """
    for index, token in enumerate(request.stop_token_ids or ()):
        if token >= vocabulary:
            raise invalid(f"stop_token_ids[{index}]", f"the vocabulary has {vocabulary} tokens.")
    for name in request.logit_bias or ():
        if not (name.isascii() and name.isdigit() and int(name) < vocabulary):
            raise invalid("logit_bias", f"token ids below {vocabulary} are expected as keys.")


def sampling_of(
    request: Drawing, max_tokens: int, *, logprobs: int | None = None, guide: Guide | None = None
) -> SamplingParams:
    """Map the fields that were given; all others keep the defaults of `SamplingParams`.

    Args:
        max_tokens: the limit of the answer.
        logprobs: likeliest tokens to tell with each token; None for no log-probabilities.
        guide: what the answer must match.

    Raises:
        PdbusError: more tokens are asked for than the limit allows.
    """
    if (request.min_tokens or 0) > max_tokens:
        raise invalid("min_tokens", f"the limit of the answer is {max_tokens} tokens.")
    given = {name: value for name in _PLAIN if (value := getattr(request, name, None)) is not None}
    stop = request.stop
    return SamplingParams(
        max_tokens=max_tokens,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logit_bias=tuple((int(name), bias) for name, bias in (request.logit_bias or {}).items()),
        logprobs=logprobs,
        guide=guide,
        **given,
    )
