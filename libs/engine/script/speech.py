"""What bends the answers of the scripted model: a text to say, and the wishes of one request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

from proto.sampling import SamplingParams

__all__ = ["PLAIN", "Bend", "ReadOut", "likelihoods", "read_out"]

_FORCE = 100.0
_RESUMED = 4
"""Fewest tokens of an answer by which a prompt that ends with them is told from any other."""

ReadOut = Callable[[Sequence[int]], tuple[int, ...] | None]
"""From a prompt to the tokens that its text tells the model to say; None where it tells nothing."""


@dataclass(frozen=True, slots=True)
class Bend:
    """What one request asks for that changes which tokens are said."""

    forced: tuple[int, ...] = ()
    """Tokens with a bias of +100: they are said in turns, in this order, and nothing else is."""
    banned: frozenset[int] = frozenset()
    """Tokens with a bias of -100."""
    least: int = 0
    """The answer does not end by itself before it has so many tokens."""
    salt: int = 0
    """Another seed at a temperature above 0 gives another answer."""
    ignore_eos: bool = False

    @classmethod
    def of(cls, sampling: SamplingParams) -> Bend:
        """Return what a request's sampling means here."""
        bias = sampling.logit_bias
        if not (bias or sampling.min_tokens) and sampling.seed is None:
            return ENDLESS if sampling.ignore_eos else PLAIN
        seeded = sampling.seed is not None and sampling.temperature > 0
        return cls(
            forced=tuple(token for token, value in bias if value >= _FORCE),
            banned=frozenset(token for token, value in bias if value <= -_FORCE),
            least=sampling.min_tokens,
            salt=(sampling.seed or 0) + 1 if seeded else 0,
            ignore_eos=sampling.ignore_eos,
        )

    @property
    def moot(self) -> bool:
        """Whether all tokens are what they would be without it, but for the end."""
        return not (self.forced or self.banned or self.least or self.salt)

    def goes_on(self, step: int, eos: int) -> bool:
        """Return whether token number `step` cannot be the end of text."""
        return self.ignore_eos or step < self.least or eos in self.banned

    def force(self, step: int) -> int | None:
        """Return the token that must come, or None where the model is free."""
        return self.forced[step % len(self.forced)] if self.forced else None


PLAIN = Bend()
ENDLESS = Bend(ignore_eos=True)


def read_out(
    prompt: Sequence[int],
    markers: tuple[str, str],
    *,
    decode: Callable[[Sequence[int]], str],
    encode: Callable[[str], list[int]],
) -> tuple[int, ...] | None:
    """Return the tokens of the text between the last two markers of a prompt.

    A prompt that ends with at least four tokens of that text is one whose answer another engine
    has begun: only the rest is left to say.
    """
    text = decode(prompt)
    begin, end = markers
    first = text.rfind(begin)
    last = text.find(end, first + len(begin))
    if first < 0 or last < 0:
        return None
    tokens = encode(text[first + len(begin) : last])
    for said in range(min(len(tokens), len(prompt)), _RESUMED - 1, -1):
        if list(prompt[-said:]) == tokens[:said]:
            return tuple(tokens[said:])
    return tuple(tokens)


def likelihoods(
    token: int, drawn: int, words: Sequence[int], count: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the log-probability of a token, and those of the `count` likeliest.

    The token that is said is always the likeliest; a shorter list begins a longer one.
    """
    chance = 0.5 + (drawn % 4096) / 8192
    own = log(chance)
    top = [(token, own)]
    place = drawn % len(words)
    rest = 1.0 - chance
    for step in range(1, len(words)):
        if len(top) >= count:
            break
        other = words[(place + step) % len(words)]
        if other != token:
            rest /= 2
            top.append((other, log(rest)))
    return own, tuple(top[:count])
