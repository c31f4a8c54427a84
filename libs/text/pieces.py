"""What single tokens stand for, in bytes: a character may be spread over several of them.

Three ways of writing tokens are known: byte-level (each byte has a letter), `▁` for a space with
`<0xNN>` for bytes that are no token of their own, and plain text.
"""

from __future__ import annotations

import re

import tokenizers

__all__ = ["Pieces"]

_BYTE_LEVEL = "ByteLevel"
_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))
_FIRST_SUBSTITUTE = 0x100


class Pieces:
    """The bytes of each token, worked out when asked for."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_level = type(tokenizer.decoder).__name__ == _BYTE_LEVEL
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token: entry.content.encode() for token, entry in added.items()}
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self._letters = _letters() if self._byte_level else {}

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token; none for an id that is no token."""
        added = self._added.get(token)
        if added is not None:
            return added
        written = self._tokenizer.id_to_token(token)
        if written is None:
            return b""
        if self._byte_level:
            return self._of_letters(written)
        byte = _BYTE.fullmatch(written)
        if byte is not None:
            return bytes.fromhex(byte[1])
        return written.replace(_SPACE, " ").encode()

    def is_special(self, token: int) -> bool:
        """Return whether no text produces the token."""
        return token in self._special

    def _of_letters(self, written: str) -> bytes:
        letters = self._letters
        found = [letters.get(letter) for letter in written]
        return written.encode() if None in found else bytes(b for b in found if b is not None)


def _letters() -> dict[str, int]:
    """Return the byte behind each letter of byte-level tokens: itself where it can be printed."""
    printable = {code for codes in _PRINTABLE for code in codes}
    others = [byte for byte in range(_FIRST_SUBSTITUTE) if byte not in printable]
    substitutes = {chr(_FIRST_SUBSTITUTE + place): byte for place, byte in enumerate(others)}
    return {chr(code): code for code in printable} | substitutes
