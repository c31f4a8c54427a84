from __future__ import annotations

import os
from pathlib import Path

import pytest

from libs.models import hashes
from libs.models.hashes import hash_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that looks like a model."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"a": 1}')
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b'{"x": 1}' + b"weights")
    return made


def _change(file: Path, data: bytes) -> None:
    before = file.stat().st_mtime_ns
    file.write_bytes(data)
    os.utime(file, ns=(before + 10**9, before + 10**9))


def test_one_changed_weight_changes_the_revision_only(folder: Path):
    """The revision follows the weights, the tokenizer's hash does not."""
    before = hash_folder(folder)
    _change(folder / "model.safetensors", (8).to_bytes(8, "little") + b'{"x": 1}' + b"Weights")
    after = hash_folder(folder)
    assert after.revision != before.revision
    assert after.tokenizer == before.tokenizer
    assert before.revision.startswith("sha256:")


def test_a_changed_chat_template_changes_the_tokenizer_only(folder: Path):
    """The template counts as a part of the tokenizer."""
    before = hash_folder(folder)
    (folder / "chat_template.jinja").write_text("x")
    after = hash_folder(folder)
    assert after.tokenizer != before.tokenizer
    assert after.revision == before.revision


def test_hashes_are_kept_beside_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A second look reads no weights."""
    before = hash_folder(folder)
    monkeypatch.setattr(hashes, "_revision", lambda _folder: pytest.fail("hashed again"))
    assert hash_folder(folder) == before


def test_a_broken_cache_is_a_miss(folder: Path):
    """A cache cut short by a crash is written anew."""
    before = hash_folder(folder)
    cache = folder.parent / ".model.hashes.json"
    cache.write_bytes(cache.read_bytes()[:20])
    assert hash_folder(folder) == before


def test_large_weights_are_named_by_their_headers(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Over the limit the revision says that it knows shapes only, and a new shape changes it."""
    monkeypatch.setattr(hashes, "FULL_HASH_BYTES", 4)
    before = hash_folder(folder)
    assert before.revision.startswith("headers:")
    _change(folder / "model.safetensors", (8).to_bytes(8, "little") + b'{"x": 2}' + b"weights")
    assert hash_folder(folder).revision != before.revision
