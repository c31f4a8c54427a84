"""What the scripted model computes: KV contents from tokens, and the next token from KV contents.

All arithmetic is on unsigned 64-bit integers that wrap. The KV of a prompt token depends on the
token, its position and all tokens before it; the KV of a generated token depends on what the model
read to make it. The next token depends on every word of one KV buffer of the request (the buffers
take turns; the first token reads all), so KV that is missing, stale, in the wrong slot or of
another request gives another answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from libs.engine.script.settings import AnswerMode
from libs.engine.script.speech import PLAIN, Bend, ReadOut

__all__ = [
    "U64",
    "Alphabet",
    "Model",
    "Sums",
    "contents",
    "draw",
    "ending",
    "mix",
    "mix_one",
    "next_states",
    "place_weights",
    "prompt_states",
    "reference",
    "word_keys",
]

U64 = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_FIRST, _SECOND, _THIRD = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTOR_1, _FACTOR_2 = np.uint64(_M1), np.uint64(_M2)
_TOKEN = 0xD6E8FEB86659FD93
_PLACE = 0xA0761D6478BD642F
_WORD = 0xE7037ED1A0B428DB
_STEP = 0x8EBC6AF09C88C6E3
_END = 0x589965CC75374CC3


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Which tokens the model may say."""

    words: tuple[int, ...]
    """Tokens of plain words."""
    eos: int
    vocab: int


@dataclass(frozen=True, slots=True)
class Model:
    """All that the answers depend on besides the prompt."""

    alphabet: Alphabet
    seed: int = 0
    buffers: int = 4
    """K and V of each layer."""
    words: int = 2
    """64-bit words that a token takes in each buffer."""
    answer: AnswerMode = AnswerMode.HASH
    answer_tokens: int = 48
    read_out: ReadOut | None = None
    """With `AnswerMode.SAY`: what a prompt tells to say."""

    def first(self, sums: U64) -> int:
        """Return the digest behind the first token, from the sums over all buffers."""
        total = 0
        for value, weight in zip(sums.tolist(), _weights_of(self.buffers), strict=True):
            total += value * weight
        return mix_one(total + self.seed)

    def blind(self, prompt: npt.NDArray[np.uint32]) -> int:
        """Return the digest of all tokens of an answer that does not look at KV."""
        return mix_one((zlib.crc32(prompt.data) << 32 | len(prompt)) + self.seed)

    def plan(self, prompt: Sequence[int]) -> tuple[int, ...] | None:
        """Return all that the answer to a prompt says, or None where it is drawn."""
        match self.answer:
            case AnswerMode.ECHO:
                return tuple(prompt)
            case AnswerMode.SAY if self.read_out is not None:
                return self.read_out(prompt)
            case _:
                return None

    def choose(self, digest: int, step: int, *, goes_on: bool, salt: int = 0) -> int:
        """Return token number `step` of an answer for what was read."""
        drawn = self.draw(digest, step, salt)
        if not goes_on and step and mix_one(drawn ^ _END) % self.answer_tokens == 0:
            return self.alphabet.eos
        return self.alphabet.words[drawn % len(self.alphabet.words)]

    def draw(self, digest: int, step: int, salt: int = 0) -> int:
        """Return the random number of token number `step`."""
        return mix_one(digest + step * _STEP + salt * _GOLDEN)

    def say(
        self, digest: int, step: int, plan: tuple[int, ...] | None, bend: Bend = PLAIN
    ) -> tuple[int, bool]:
        """Return token number `step` of an answer, and whether the answer ends with it."""
        eos = self.alphabet.eos
        goes_on = bend.goes_on(step, eos)
        forced = bend.force(step)
        if forced is not None:
            return forced, forced == eos and not goes_on
        if plan is not None and step >= len(plan) and not goes_on:
            return eos, True
        if plan:
            return self._allowed(plan[step % len(plan)], bend), False
        token = self.choose(digest, step, goes_on=goes_on, salt=bend.salt)
        token = self._allowed(token, bend)
        return token, token == eos and not goes_on

    def _allowed(self, token: int, bend: Bend) -> int:
        """Return the token, or the next word that is not banned."""
        if token not in bend.banned:
            return token
        words = self.alphabet.words
        free = (words[(token + step) % len(words)] for step in range(len(words)))
        return next((word for word in free if word not in bend.banned), self.alphabet.eos)

    def echo(self, word: int, place: int) -> int:
        """Return the token that KV word `word` holds for `place`; any other word gives nonsense."""
        token = word & 0xFFFFFFFF
        if word >> 32 == place and token < self.alphabet.vocab:
            return token
        return self.alphabet.words[mix_one(word) % len(self.alphabet.words)]

    def state_after(self, digest: int, token: int, place: int) -> int:
        """Return the state from which the KV of a generated token is made."""
        return mix_one(digest ^ mix_one(token * _TOKEN + place * _PLACE + self.seed))


def mix(values: U64) -> U64:
    """Return `values` with their bits mixed."""
    out = values >> _FIRST
    out ^= values
    out *= _FACTOR_1
    out ^= out >> _SECOND
    out *= _FACTOR_2
    out ^= out >> _THIRD
    return out


def mix_one(value: int) -> int:
    """Return one value with its bits mixed, equal to `mix`."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def place_weights(places: int) -> U64:
    """Return the odd weight of each place in a request."""
    index = np.arange(places, dtype=np.uint64)
    return mix(index * np.uint64(_PLACE) + np.uint64(_GOLDEN)) | np.uint64(1)


def prompt_states(tokens: npt.NDArray[np.uint32], seed: int) -> U64:
    """Return the state of each prompt token: a hash of it, its place and all tokens before it."""
    index = np.arange(len(tokens), dtype=np.uint64)
    own = tokens.astype(np.uint64) * np.uint64(_TOKEN) + index * np.uint64(_PLACE)
    return mix(np.add.accumulate(mix(own + np.uint64(seed & _MASK))))


def word_keys(buffers: int, words: int) -> U64:
    """Return what makes each word of a token's KV different from the others."""
    return (np.arange(buffers * words, dtype=np.uint64) + np.uint64(1)) * np.uint64(_WORD)


def contents(states: U64, tokens: U64, places: U64, keys: U64) -> U64:
    """Return the KV words of tokens, of shape (tokens, words of all buffers).

    The first word of the first buffer is the token and its place in clear; the others are hashes.
    """
    out = mix(states[:, None] + keys)
    out[:, 0] = tokens | (places << np.uint64(32))
    return out


def next_states(digests: U64, tokens: U64, places: U64, seed: int) -> U64:
    """Return the states of generated tokens, as `Model.state_after` does one by one."""
    own = tokens * np.uint64(_TOKEN) + places * np.uint64(_PLACE) + np.uint64(seed & _MASK)
    return mix(digests ^ mix(own))


def draw(digests: U64, steps: U64) -> U64:
    """Return a random number for each answer."""
    return mix(digests + steps * np.uint64(_STEP))


def ending(drawn: U64, steps: U64, mean: int) -> npt.NDArray[np.bool_]:
    """Return which of the answers for which was drawn would end here."""
    ends = mix(drawn ^ np.uint64(_END)) % np.uint64(mean) == 0
    return ends & (steps > 0)


class Sums:
    """What the model reads of flawless KV, without any KV: of a prompt, then token by token."""

    def __init__(self, model: Model, prompt: npt.NDArray[np.uint32]) -> None:
        self._model = model
        self._keys = word_keys(model.buffers, model.words)
        self._length = len(prompt)
        self.step = 0
        """Tokens of the answer that were added."""
        index = np.arange(self._length, dtype=np.uint64)
        states = prompt_states(prompt, model.seed)
        kv = contents(states, prompt.astype(np.uint64), index, self._keys)
        kv = kv.reshape(self._length, model.buffers, model.words).sum(axis=2, dtype=np.uint64)
        weights = place_weights(self._length)[:, None]
        self._sums: U64 = (kv * weights).sum(axis=0, dtype=np.uint64)

    @property
    def digest(self) -> int:
        """What is read to make the next token."""
        model, step = self._model, self.step
        return model.first(self._sums) if step == 0 else int(self._sums[step % model.buffers])

    def add(self, token: int) -> None:
        """Add the KV of the next token of the answer."""
        model, place = self._model, self._length + self.step
        kv = contents(
            np.array([model.state_after(self.digest, token, place)], dtype=np.uint64),
            np.array([token], dtype=np.uint64),
            np.array([place], dtype=np.uint64),
            self._keys,
        )
        own = kv.reshape(model.buffers, model.words).sum(axis=1, dtype=np.uint64)
        self._sums = self._sums + own * np.uint64(_mixed(place, _PLACE) | 1)
        self.step += 1


def reference(
    model: Model,
    input_ids: Sequence[int],
    count: int,
    *,
    ignore_eos: bool = False,
    bend: Bend | None = None,
) -> list[int]:
    """Return the first `count` tokens of the right answer; shorter if the answer ends.

    A pure function without any memory of pages, slots or transfers: the oracle for all of them.
    """
    bend = Bend(ignore_eos=ignore_eos) if bend is None else bend
    prompt = np.asarray(input_ids, dtype=np.uint32)
    plan = model.plan(prompt.tolist())
    sums = None if model.answer is AnswerMode.BLIND else Sums(model, prompt)
    answer: list[int] = []
    for step in range(count):
        digest = model.blind(prompt) if sums is None else sums.digest
        token, ends = model.say(digest, step, plan, bend)
        answer.append(token)
        if ends:
            break
        if sums is not None:
            sums.add(token)
    return answer


@cache
def _weights_of(buffers: int) -> tuple[int, ...]:
    """Return the odd weight of each buffer."""
    return tuple(_mixed(place, _PLACE) | 1 for place in range(buffers))


def _mixed(value: int, key: int) -> int:
    return mix_one(value * key + _GOLDEN)
