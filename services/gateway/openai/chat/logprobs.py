"""Log-probabilities in the words of the chat endpoint."""

from __future__ import annotations

from collections.abc import Iterable

from libs.text import Tokenizer
from proto.openai.logprobs import TokenInfo, TopToken
from proto.output import TokenLogprob
from services.gateway.openai.answers.pieces import finite, shown

__all__ = ["token_infos"]


def token_infos(tokenizer: Tokenizer, entries: Iterable[TokenLogprob]) -> tuple[TokenInfo, ...]:
    """Return one entry a token, with its text and bytes."""
    return tuple(_info(tokenizer, entry) for entry in entries)


def _info(tokenizer: Tokenizer, entry: TokenLogprob) -> TokenInfo:
    piece = tokenizer.piece(entry.token)
    return TokenInfo(
        token=shown(piece),
        logprob=finite(entry.logprob),
        bytes=tuple(piece),
        top_logprobs=tuple(_top(tokenizer, token, logprob) for token, logprob in entry.top),
    )


def _top(tokenizer: Tokenizer, token: int, logprob: float) -> TopToken:
    piece = tokenizer.piece(token)
    return TopToken(token=shown(piece), logprob=finite(logprob), bytes=tuple(piece))
