"""From tokens to text: incremental decoding, and stop strings that never leak."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

import msgspec
from tokenizers import Tokenizer
from tokenizers.decoders import (
    ByteLevel,  # pyright: ignore[reportUnknownVariableType] - unlisted
    DecodeStream,  # pyright: ignore[reportUnknownVariableType] - unlisted
)

from libs.engine.script.answer import Alphabet
from libs.engine.script.settings import MARKERS
from libs.engine.script.speech import read_out
from libs.text.digest import tokenizer_digest

__all__ = ["StopFilter", "TextStream", "Vocabulary", "load_vocabulary", "plain_vocabulary"]

_WORD = re.compile(r"[\u0120\u2581][a-z]{2,}")
"""A token of a plain word, with the space before it as byte-level and piece tokenizers write it."""
_NUMBERED = re.compile(r" w([0-9]{1,9})")
_FEWEST_WORDS = 16
_PARTIAL = "\ufffd"
"""What bytes that are no whole character are decoded as."""


class TextStream(Protocol):
    """Decodes one answer, token by token."""

    def step(self, token: int) -> str:
        """Return the text that is complete with this token; never a part of a character."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model and how to read them."""

    alphabet: Alphabet
    digest: str
    tokenizer: Tokenizer | None = None
    known: dict[int, str] | None = None
    """Texts of the tokens that were said and are whole characters, empty for other ones; None where
    the text of a token depends on what stands before it."""

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """Return a decoder for one answer."""
        if self.tokenizer is None:
            return _Plain()
        return _Decoded(self.tokenizer, self.known, skip_special=skip_special)

    def text(self, tokens: list[int]) -> str:
        """Return the text of a whole prompt."""
        if self.tokenizer is None:
            return "".join(map(_word, tokens))
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a text; made-up vocabularies know only their numbered words."""
        if self.tokenizer is None:
            numbers = (int(found) for found in _NUMBERED.findall(text))
            return [number for number in numbers if number < self.alphabet.vocab]
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def read_out(self, prompt: Sequence[int]) -> tuple[int, ...] | None:
        """Return the tokens that a prompt tells the model to say, if it does."""
        return read_out(
            prompt, MARKERS, decode=lambda ids: self.text(list(ids)), encode=self.tokens
        )


class StopFilter:
    """Holds text back while it could be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Return the text that may be shown, and whether a stop string was met.

        Text from the first character of the match on is never shown.
        """
        if not self._stops or not text:
            return text, False
        held = self._held + text
        found = [place for stop in self._stops if (place := held.find(stop)) >= 0]
        if found:
            self._held = ""
            return held[: min(found)], True
        keep = self._suspect(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], False

    def rest(self) -> str:
        """Return what is still held back, for an answer that ends otherwise."""
        held, self._held = self._held, ""
        return held

    def _suspect(self, text: str) -> int:
        longest = max(map(len, self._stops)) - 1
        for size in range(min(longest, len(text)), 0, -1):
            tail = text[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0


def load_vocabulary(folder: Path) -> Vocabulary:
    """Return the vocabulary of a model folder.

    Raises:
        ValueError: the folder has no usable tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        text = f"no tokenizer.json in {folder}"
        raise ValueError(text)
    raw = path.read_bytes()
    tokenizer = Tokenizer.from_buffer(raw)
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    words = sorted(token for piece, token in vocab.items() if _WORD.fullmatch(piece))
    eos = _eos(folder, tokenizer)
    if len(words) < _FEWEST_WORDS:
        words = sorted(set(tokenizer.get_vocab(with_added_tokens=False).values()) - {eos})
    size = max(vocab.values()) + 1
    alphabet = Alphabet(words=tuple(words), eos=eos, vocab=size)
    # Byte-level texts of tokens stand one behind the other, whatever the tokens are.
    known: dict[int, str] | None = {} if isinstance(tokenizer.decoder, ByteLevel) else None
    return Vocabulary(alphabet, tokenizer_digest(folder), tokenizer, known)


def plain_vocabulary(size: int) -> Vocabulary:
    """Return a made-up vocabulary whose tokens read as numbered words."""
    alphabet = Alphabet(words=tuple(range(1, size)), eos=0, vocab=size)
    return Vocabulary(alphabet, f"plain-{size}")


class _Plain:
    def step(self, token: int) -> str:
        return _word(token)


class _Decoder(Protocol):
    def step(self, tokenizer: Tokenizer, token: int, /) -> str | None: ...


class _Decoded:
    """Decodes by the tokenizer, but for tokens whose text is known and stands alone."""

    def __init__(
        self, tokenizer: Tokenizer, known: dict[int, str] | None, *, skip_special: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._known = known
        self._skip_special = skip_special
        self._stream: _Decoder | None = None
        self._open = known is None
        """Whether a part of a character may wait for its rest."""

    def step(self, token: int) -> str:
        if not self._open and (text := self._text(token)):
            return text
        if self._stream is None:
            self._stream = cast("_Decoder", DecodeStream(skip_special_tokens=self._skip_special))
        text = self._stream.step(self._tokenizer, token) or ""
        self._open = self._known is None or not text
        return text

    def _text(self, token: int) -> str:
        known = self._known
        if known is None:
            return ""
        text = known.get(token)
        if text is None:
            added = token in self._tokenizer.get_added_tokens_decoder()
            text = "" if added else self._tokenizer.decode([token], skip_special_tokens=False)
            text = known[token] = "" if _PARTIAL in text else text
        return text


def _word(token: int) -> str:
    return f" w{token}"


def _eos(folder: Path, tokenizer: Tokenizer) -> int:
    named = _settings(folder / "tokenizer_config.json", _TokenizerSettings).eos_token
    content = named.content if isinstance(named, _NamedToken) else named
    token = None if content is None else tokenizer.token_to_id(content)
    if token is not None:
        return token
    listed = _settings(folder / "config.json", _ModelSettings).eos_token_id
    if isinstance(listed, list):
        listed = listed[0] if listed else None
    if listed is None:
        text = f"{folder} names no end-of-text token"
        raise ValueError(text)
    return listed


class _NamedToken(msgspec.Struct, frozen=True):
    content: str


class _TokenizerSettings(msgspec.Struct, frozen=True):
    eos_token: str | _NamedToken | None = None


class _ModelSettings(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None


SettingsT = TypeVar("SettingsT")


def _settings(path: Path, kind: type[SettingsT]) -> SettingsT:
    return msgspec.json.decode(path.read_bytes() if path.is_file() else b"{}", type=kind)
