from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from libs.models.vocabulary import Vocabulary, byte_vocabulary, write_tokenizer

TEXTS = ("Hello, world!", "a\n\n  b\t1234567", "naïve 日本語 🙂", "<|im_start|>user\nhi<|im_end|>")


@pytest.mark.parametrize("text", TEXTS)
def test_the_byte_tokenizer_keeps_every_text(tmp_path: Path, text: str):
    """Encoding and decoding with one token a byte gives the text back, special tokens included."""
    write_tokenizer(tmp_path, byte_vocabulary())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_have_the_first_ids(tmp_path: Path):
    """The ids in the model's config are those of the written tokenizer."""
    write_tokenizer(tmp_path, byte_vocabulary())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>").ids == [0, 1, 2]


def test_merges_apply_and_digits_stay_apart(tmp_path: Path):
    """A merge joins letters, while two digits are two tokens even if a merge would join them."""
    small = byte_vocabulary()
    joined = Vocabulary(
        tokens=(*small.tokens, "ab", "12"),
        merges=("a b", "1 2"),
        special=small.special,
        roles=small.roles,
        template=small.template,
    )
    write_tokenizer(tmp_path, joined)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("ab").ids == [len(small.tokens)]
    assert len(tokenizer.encode("12").ids) == 2
