"""From tokens to text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from libs.engine.script.text import StopFilter, load_vocabulary, plain_vocabulary

STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder with a small byte-level tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = " ".join(a + b + c for a in "bcdfg" for b in "aeiou" for c in "lmnr")
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([words] * 5, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return path


@given(st.lists(st.text(alphabet="abc", max_size=3), max_size=20), STOPS)
def test_shown_text_is_the_text_before_the_first_stop(pieces, stops):
    """However text is cut into pieces, what is shown ends right before the first stop string."""
    filtered = StopFilter(tuple(stops))
    shown, stopped = "", False
    fed = ""
    for piece in pieces:
        fed += piece
        part, stopped = filtered.feed(piece)
        shown += part
        if stopped:
            break
        assert not any(stop in shown for stop in stops)
    if not stopped:
        shown += filtered.rest()
    found = [fed.find(stop) for stop in stops if stop in fed]
    assert stopped == bool(found)
    assert shown == (fed[: min(found)] if found else fed)


def test_characters_are_never_cut(folder):
    """Text of many-byte characters comes in whole characters and adds up to the original."""
    vocabulary = load_vocabulary(folder)
    text = "bal 👨‍👩‍👧 日本 e\u0301 🎉 gur"
    stream = vocabulary.stream()
    pieces = [stream.step(token) for token in vocabulary.tokenizer.encode(text).ids]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_folder_gives_plain_words_and_its_end_token(folder):
    """The words that the model may say are plain words, and the end token is not one of them."""
    vocabulary = load_vocabulary(folder)
    alphabet = vocabulary.alphabet
    assert alphabet.eos == vocabulary.tokenizer.token_to_id("<|end|>")
    assert alphabet.eos not in alphabet.words
    said = vocabulary.text(list(alphabet.words))
    assert len(said.split()) == len(alphabet.words) >= 16
    assert said.replace(" ", "").isalpha()


def test_the_end_token_may_stand_in_the_model_settings(folder, tmp_path):
    """A folder without named end token uses the number in `config.json`, or is refused."""
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match="end-of-text"):
        load_vocabulary(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert load_vocabulary(tmp_path).alphabet.eos == 7


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    """The reason names what is missing."""
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_vocabulary(tmp_path)


def test_made_up_tokens_read_as_numbered_words():
    """Without a tokenizer each token has its own text."""
    vocabulary = plain_vocabulary(100)
    assert vocabulary.text([5, 17]) == " w5 w17"
    assert 0 not in vocabulary.alphabet.words


@given(st.data())
def test_known_texts_are_those_of_the_tokenizer(folder, data):
    """Whatever was said before, each step gives what the tokenizer's own stream would give."""
    vocabulary = load_vocabulary(folder)
    size = vocabulary.alphabet.vocab
    tokens = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    for skip in (True, False):
        plain = decoders.DecodeStream(skip_special_tokens=skip)
        for _ in range(2):
            stream = vocabulary.stream(skip_special=skip)
            texts = [stream.step(token) for token in tokens]
        assert texts == [plain.step(vocabulary.tokenizer, token) or "" for token in tokens]
