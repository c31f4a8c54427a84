"""Log-probabilities in the words of the completions endpoint."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from libs.text import Tokenizer
from proto.openai.completions import CompletionLogprobs
from proto.output import TokenLogprob
from services.gateway.openai.answers.pieces import finite, shown

__all__ = ["Words"]

_decoder = codecs.getincrementaldecoder("utf-8")


class Words:
    """The tokens of one choice, whose offsets go on from chunk to chunk."""

    def __init__(self, tokenizer: Tokenizer, *, skips_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._text = _decoder("replace")
        self._offset = 0

    def take(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Return what is told of some tokens, which follow those taken before."""
        offsets = [self._pass(entry.token) for entry in entries]
        return CompletionLogprobs(
            tokens=tuple(self._shown(entry.token) for entry in entries),
            token_logprobs=tuple(finite(entry.logprob) for entry in entries),
            top_logprobs=tuple(self._top(entry) for entry in entries),
            text_offset=tuple(offsets),
        )

    def _pass(self, token: int) -> int:
        """Return where a token begins, and step over it."""
        begins = self._offset
        if not (self._skips_special and self._tokenizer.is_special(token)):
            self._offset += len(self._text.decode(self._tokenizer.piece(token)))
        return begins

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        found: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            found.setdefault(self._shown(token), finite(logprob))
        return found

    def _shown(self, token: int) -> str:
        return shown(self._tokenizer.piece(token))
