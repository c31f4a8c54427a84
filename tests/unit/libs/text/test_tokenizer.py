"""Prompts as token ids."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from libs.models.vocabulary import byte_vocabulary, write_tokenizer
from libs.text.tokenizer import Tokenizer, pack_ids


@pytest.mark.parametrize("length", [0, 1, 2_048, 2_049, 10_000])
@pytest.mark.parametrize("add_special", [False, True])
def test_short_and_long_texts_are_encoded_alike(tmp_path: Path, length: int, *, add_special: bool):
    """The ids of a text are those of the library, whichever of its ways is taken."""
    write_tokenizer(tmp_path, byte_vocabulary())
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = ("A bus, ünïcode and 日本語. " * 500)[:length]
    found = Tokenizer.load(tmp_path).encode(text, add_special=add_special)
    assert found == pack_ids(plain.encode(text, add_special_tokens=add_special).ids)
    (batch,) = plain.encode_batch_fast([text], add_special_tokens=add_special)
    assert found == pack_ids(batch.ids)
