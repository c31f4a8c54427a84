"""A model folder in Hugging Face layout becomes tokenizer, template and limits."""

from __future__ import annotations

import asyncio
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.models.hashes import hash_folder
from libs.models.vocabulary import byte_vocabulary, write_tokenizer
from libs.text import ModelText, ModelTextError, Tokenizer, Turn, tokenizer_digest
from libs.text.tokenizer import pack_ids, unpack_ids

CONFIG = {"max_position_embeddings": 512, "eos_token_id": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a byte tokenizer and a config."""
    write_tokenizer(tmp_path, byte_vocabulary())
    write(tmp_path, "config.json", CONFIG)
    return tmp_path


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def change(folder: Path, name: str, **fields: Any) -> None:
    write(folder, name, json.loads((folder / name).read_text(encoding="utf-8")) | fields)


def test_a_folder_is_read(folder: Path):
    """Context, end tokens and template come from the folder's files."""
    text = ModelText.load(folder)
    assert text.context_tokens == 512
    assert text.eos_ids == (2,)
    prompt = text.template.render([Turn("user", "Hi")], unix_ms=0)
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = text.tokenizer.encode(prompt)
    assert unpack_ids(ids)[0] == text.tokenizer.token_id("<|im_start|>")
    assert text.tokenizer.decode(ids) == prompt


def test_the_digest_is_the_one_of_the_workers(folder: Path):
    """Gateway and engines name a tokenizer by the same hash, computed apart."""
    assert tokenizer_digest(folder) == hash_folder(folder).tokenizer
    assert ModelText.load(folder).digest == hash_folder(folder).tokenizer


def test_the_digest_depends_on_the_template(folder: Path):
    """Two folders that differ in the template only differ in the hash."""
    before = tokenizer_digest(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert tokenizer_digest(folder) != before


def test_a_template_inside_the_config_is_found(folder: Path):
    """Older folders keep the template, or several by name, in the tokenizer's config."""
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    for given_template in ("d", named):
        change(folder, "tokenizer_config.json", chat_template=given_template)
        assert ModelText.load(folder).template.render([Turn("user", "x")], unix_ms=0) == "d"


def test_special_tokens_may_be_objects(folder: Path):
    """A special token may be written with its flags."""
    change(folder, "tokenizer_config.json", bos_token={"content": "<b>", "lstrip": False})
    (folder / "chat_template.jinja").write_text("{{ bos_token }}", encoding="utf-8")
    assert ModelText.load(folder).template.render([Turn("user", "x")], unix_ms=0) == "<b>"


def test_the_generation_config_names_the_end_first(folder: Path):
    """End tokens of the generation config win over those of the model's config."""
    write(folder, "generation_config.json", {"eos_token_id": [2, 0]})
    assert ModelText.load(folder).eos_ids == (2, 0)


def test_the_end_is_found_by_name(folder: Path):
    """Without ids, the tokenizer's end token is looked up."""
    write(folder, "config.json", {"max_position_embeddings": 8})
    assert ModelText.load(folder).eos_ids == (2,)


def test_the_context_may_be_nested(folder: Path):
    """Models with several parts describe their language model apart."""
    write(folder, "config.json", {"text_config": {"max_position_embeddings": 77}})
    assert ModelText.load(folder).context_tokens == 77


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", "{}", "does not tell the context length"),
        ("config.json", "[", "config.json is not as expected"),
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "is no tokenizer"),
        ("tokenizer_config.json", '{"bos_token": 5}', "tokenizer_config.json is not as expected"),
    ],
)
def test_a_bad_folder_is_named(folder: Path, name: str, content: str | None, reason: str):
    """What is missing or broken stands in the error, so that an operator can mend it."""
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(ModelTextError, match=reason):
        ModelText.load(folder)


def test_a_folder_without_template_is_refused(folder: Path):
    """A model that cannot chat is found at the start."""
    (folder / "chat_template.jinja").unlink()
    write(folder, "tokenizer_config.json", {})
    with pytest.raises(ModelTextError, match="no chat template"):
        ModelText.load(folder)


def test_padding_and_truncation_of_the_file_are_off(folder: Path):
    """A tokenizer file that asks to cut or fill prompts does not get its way."""
    long_text = "x" * 50
    ids = Tokenizer.load(folder).encode(long_text)
    change(
        folder,
        "tokenizer.json",
        truncation={
            "direction": "Right",
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
        },
    )
    assert Tokenizer.load(folder).encode(long_text) == ids


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_are_little_endian_uint32(ids: list[int]):
    """Packed ids are four bytes each, lowest first, and come back as they were."""
    packed = pack_ids(ids)
    assert packed == b"".join(value.to_bytes(4, "little") for value in ids)
    assert unpack_ids(packed) == ids


@settings(deadline=None)
@given(st.text(max_size=200))
def test_the_fewest_tokens_are_never_too_many(text: str):
    """The quick bound is at most the true number, for any text."""
    tokenizer = byte_tokenizer()
    assert tokenizer.fewest_tokens(text) <= len(unpack_ids(tokenizer.encode(text)))


@settings(deadline=None)
@given(st.text(max_size=200))
def test_the_most_tokens_are_never_too_few(text: str):
    """The bound is at least the true number, for any text."""
    tokenizer = byte_tokenizer()
    most = tokenizer.most_tokens(text)
    assert most is not None
    assert most >= len(unpack_ids(tokenizer.encode(text)))


@settings(deadline=None)
@given(st.text(max_size=200))
def test_ids_are_those_of_the_library(text: str):
    """Whatever the text, its ids are those that the library's plain way gives."""
    tokenizer = byte_tokenizer()
    plain = tokenizer._tokenizer.encode(text, add_special_tokens=False)
    assert unpack_ids(tokenizer.encode(text)) == plain.ids


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of the folder."""
    return Tokenizer.load(folder)


async def test_a_long_text_does_not_stop_the_loop(tokenizer: Tokenizer):
    """While a long text is encoded on a thread, the event loop makes turn after turn."""
    encoding = asyncio.ensure_future(asyncio.to_thread(tokenizer.encode, "w" * 1_000_000))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len(await encoding) == 4_000_000
    # With the interpreter lock held there are two or three.
    assert turns > 20


def test_the_fewest_tokens_grow_with_the_text():
    """Long texts are known to be long without being encoded."""
    assert byte_tokenizer().fewest_tokens("x" * 10_000) > 500


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"decoder": {"type": "Fuse"}},
        {"decoder": None},
    ],
)
def test_there_is_no_bound_where_text_may_be_dropped(folder: Path, change: dict[str, Any]):
    """A tokenizer that may shorten a text before it is encoded has no quick bound."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8")) | change
    file.write_text(json.dumps(content), encoding="utf-8")
    assert Tokenizer.load(folder).fewest_tokens("x" * 10_000) == 0
    assert Tokenizer.load(folder).most_tokens("x") is None


@cache
def byte_tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), byte_vocabulary())
        return Tokenizer.load(Path(folder))
