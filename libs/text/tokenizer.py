"""Text to token ids with the `tokenizers` library."""

from __future__ import annotations

import sys
from array import array
from pathlib import Path

import msgspec
import tokenizers

from libs.text.errors import ModelTextError
from libs.text.pieces import Pieces

__all__ = ["Tokenizer", "pack_ids", "unpack_ids"]

_FILE = "tokenizer.json"
_SHORT_CHARS = 2_048
"""A text that is encoded in less time than threads take to wake."""
_MOST_UTF8 = 4
"""Bytes of a character."""
_BYTE_LEVEL = "ByteLevel"
"""Name of the decoder's class; the library gives no types for its decoders."""


class _TokenizerFile(msgspec.Struct):
    """What is looked at before the library reads the file: its own errors have no type."""

    model: dict[str, msgspec.Raw]


class Tokenizer:
    """A fast tokenizer, read from a model folder. Safe to use from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        # A padding or truncation that the file asks for would change the prompt in silence.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._longest = _longest_token(tokenizer)
        self._pieces = Pieces(tokenizer)
        self._vocabulary: int = tokenizer.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json` of a folder.

        Raises:
            ModelTextError: the file is missing or is no tokenizer.
        """
        file = folder / _FILE
        if not file.is_file():
            raise ModelTextError(f"{folder} has no {_FILE}")
        content = file.read_text(encoding="utf-8")
        try:
            msgspec.json.decode(content, type=_TokenizerFile)
        except msgspec.DecodeError as error:
            raise ModelTextError(f"{file} is no tokenizer: {error}") from error
        return cls(tokenizers.Tokenizer.from_str(content))

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The library's own tokenizer, to be asked and not to be changed."""
        return self._tokenizer

    @property
    def vocabulary(self) -> int:
        """Number of token ids, added tokens included."""
        return self._vocabulary

    def fewest_tokens(self, text: str) -> int:
        """Return a number of tokens that `text` certainly has, without encoding it.

        Encoding megabytes takes seconds; a prompt that cannot fit is known much sooner.
        """
        return -(-len(text) // self._longest) if self._longest else 0

    def most_tokens(self, text: str) -> int | None:
        """Return a number that the tokens of `text` certainly do not exceed, without encoding it.

        None where the tokenizer gives no such bound.
        """
        if not self._longest:
            return None
        # A byte may be a token, and each piece of a text may be given a space in front of it.
        return 2 * (len(text) if text.isascii() else _MOST_UTF8 * len(text)) + 1

    def token_id(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        return self._tokenizer.token_to_id(token)

    def encode(self, text: str, *, add_special: bool = False) -> bytes:
        """Return the ids of a prompt as little-endian uint32.

        The interpreter lock is free while a long text is encoded, so that this can be done on
        another thread: of the library's methods only those for batches let it go. They share their
        work among threads, and to wake these costs more than a short text.

        Args:
            add_special: whether the tokenizer may frame the text with its own tokens, as for plain
                text; a chat template has written them already.
        """
        if len(text) <= _SHORT_CHARS:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special)
        else:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        return pack_ids(encoding.ids)

    def decode(self, ids: bytes, *, skip_special: bool = False) -> str:
        """Return the text of packed ids, special tokens included unless they are skipped."""
        return self._tokenizer.decode(unpack_ids(ids), skip_special_tokens=skip_special)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for; those of a special token are its name."""
        return self._pieces.bytes_of(token)

    def is_special(self, token: int) -> bool:
        """Return whether a token is one that no text produces."""
        return self._pieces.is_special(token)


def pack_ids(ids: list[int]) -> bytes:
    """Return token ids as little-endian uint32."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(ids: bytes) -> list[int]:
    """Return the token ids in little-endian uint32 bytes."""
    packed = array("I")
    packed.frombytes(ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def _longest_token(tokenizer: tokenizers.Tokenizer) -> int:
    """Return the most bytes that a token can stand for, or 0 where there is no such bound.

    Byte-level tokenizers without a normalizer drop nothing: each byte of a text is in one token.
    """
    byte_level = type(tokenizer.decoder).__name__ == _BYTE_LEVEL
    added = tokenizer.get_added_tokens_decoder().values()
    if not byte_level or tokenizer.normalizer is not None or any(_strips(t) for t in added):
        return 0
    return max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=0)


def _strips(token: tokenizers.AddedToken) -> bool:
    """Return whether a token swallows the white space around it."""
    return token.lstrip or token.rstrip
