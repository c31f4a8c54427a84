"""Single tokens as bytes: together they are the text, whatever a tokenizer writes them like."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from libs.models.vocabulary import byte_vocabulary, write_tokenizer
from libs.text import Tokenizer
from libs.text.tokenizer import unpack_ids


@pytest.fixture(scope="module")
def by_byte(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer whose tokens are bytes."""
    folder: Path = tmp_path_factory.mktemp("bytes")
    write_tokenizer(folder, byte_vocabulary())
    return Tokenizer.load(folder)


def by_word(words: list[str]) -> Tokenizer:
    """A tokenizer that writes a space as `▁` and unknown bytes as `<0xNN>`."""
    named = [*words, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: index for index, word in enumerate(named)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Tokenizer(made)


@settings(deadline=None)
@given(st.text())
def test_bytes_of_tokens_are_the_text(by_byte: Tokenizer, text: str):
    """The pieces of any text add up to its UTF-8."""
    tokens = unpack_ids(by_byte.encode(text))
    assert b"".join(map(by_byte.piece, tokens)) == text.encode()


@pytest.mark.parametrize("text", ["ab ba", "a é b", "🙂", " a"])
def test_spaces_and_bytes_of_other_tokenizers(text: str):
    """`▁` is a space, and a byte token is that byte."""
    made = by_word(["▁", "a", "b"])
    tokens = unpack_ids(made.encode(text))
    assert b"".join(map(made.piece, tokens)) == text.encode()


def test_special_tokens_are_known_and_named(by_byte: Tokenizer):
    """A special token has its name as bytes; a plain one is not special."""
    end = by_byte.token_id("<|im_end|>")
    assert end is not None
    assert by_byte.piece(end) == b"<|im_end|>"
    assert by_byte.is_special(end)
    assert not by_byte.is_special(unpack_ids(by_byte.encode("a"))[0])


def test_an_id_that_is_no_token_is_nothing(by_byte: Tokenizer):
    """Engines pad their vocabulary: an id beyond ours has no bytes, and is no error."""
    assert by_byte.piece(by_byte.vocabulary + 7) == b""


def test_special_tokens_can_be_left_out(by_byte: Tokenizer):
    """Decoding shows special tokens unless they are to be skipped."""
    ids = by_byte.encode("<|im_start|>a<|im_end|>")
    assert by_byte.decode(ids) == "<|im_start|>a<|im_end|>"
    assert by_byte.decode(ids, skip_special=True) == "a"
