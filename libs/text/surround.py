"""What every plain chat of a model begins and ends with: encoded once, not with each prompt.

A template frames what a client says with the same text each time, a default system turn among it,
and that was half of what encoding a short prompt cost. Where such text ends with a special token,
and what follows it begins with one, the tokens between depend on nothing outside. Only text of the
template itself is kept: what clients say is encoded each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from libs.text.errors import TemplateRefused
from libs.text.template import ChatTemplate, Turn
from libs.text.tokenizer import Tokenizer

__all__ = ["Surround"]

_PROBES = ("one", "Two, 2!", " <ünï>\n\n  ", "one two")
_ID_BYTES = 4


class Surround:
    """Encodes prompts; those that have the usual beginning and end cost what is between.

    Args:
        tokenizer: of the model.
        usual: beginning and end, each with the special token at which it is cut off; None if
            prompts have nothing in common.
    """

    def __init__(
        self, tokenizer: Tokenizer, usual: tuple[tuple[str, str], tuple[str, str]] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._usual = usual
        (self._before, self._first), (self._after, self._last) = usual or (("", ""), ("", ""))
        self._least = len(self._before) + len(self._after)
        self._head, self._tail = self._ids(self._before), self._ids(self._after)

    @classmethod
    def learn(cls, tokenizer: Tokenizer, template: ChatTemplate) -> Surround:
        """Return what encodes the prompts of a template, and of any other."""
        try:
            probes = [template.render([Turn("user", text)], unix_ms=0) for text in _PROBES]
        except TemplateRefused:
            return cls(tokenizer)
        before = _common(probes)
        after = _common([probe[::-1] for probe in probes])[::-1]
        surround = cls(tokenizer, _usual(before, after, tokenizer.library))
        same = all(surround.encode(probe) == tokenizer.encode(probe) for probe in probes)
        return surround if same else cls(tokenizer)

    def encode(self, prompt: str) -> bytes:
        """Return the ids of a prompt, which are those that the tokenizer gives."""
        before, after = self._before, self._after
        if (
            self._usual is None
            or len(prompt) < self._least
            or not prompt.startswith(before)
            or not prompt.endswith(after)
        ):
            return self._ids(prompt)
        # The two tokens stand at the ends, so that nothing between is the beginning of a text.
        between = prompt[len(before) : len(prompt) - len(after)]
        ids = self._ids(f"{self._first}{between}{self._last}")
        return self._head + ids[_ID_BYTES:-_ID_BYTES] + self._tail

    def _ids(self, text: str) -> bytes:
        return self._tokenizer.encode(text, add_special=False)


def _common(texts: Sequence[str]) -> str:
    """Return what all texts begin with."""
    least, most = min(texts), max(texts)
    size = next((i for i, letter in enumerate(least) if letter != most[i]), len(least))
    return least[:size]


def _usual(
    before: str, after: str, library: tokenizers.Tokenizer
) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Cut beginning and end off at special tokens, if what stands between is sure to be apart."""
    added = [token for token in library.get_added_tokens_decoder().values() if token.content]
    exact = [token.content for token in added if _is_exact(token)]
    opening = max(((before.rfind(t) + len(t), t) for t in exact if t in before), default=None)
    closing = min(((after.find(t), t) for t in exact if t in after), default=None)
    if opening is None or closing is None:
        return None
    (stop, first), (start, last) = opening, closing
    before, after = before[:stop], after[start:]
    # No token may begin in what clients say and end outside of it, or the other way round.
    for token in added:
        text = token.content
        cuts = range(1, len(text))
        if any(before.endswith(text[:cut]) or after.startswith(text[cut:]) for cut in cuts):
            return None
    return (before, first), (after, last)


def _is_exact(token: tokenizers.AddedToken) -> bool:
    """Return whether a token stands for its own text alone, wherever that is found."""
    return token.special and not (
        token.lstrip or token.rstrip or token.normalized or token.single_word
    )
