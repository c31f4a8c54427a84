from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from libs.models import ModelUnavailableError, resolve
from libs.models.vocabulary import byte_vocabulary, write_tokenizer


def _quiet(_text: str) -> None:
    pass


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root where smollm2 is already prepared (without weights)."""
    made = tmp_path / "smollm2"
    made.mkdir()
    small = byte_vocabulary()
    write_tokenizer(made, small)
    (made / "config.json").write_text(json.dumps({"vocab_size": len(small.tokens)}))
    (made / "generation_config.json").write_text("{}")
    return tmp_path


def test_the_scripted_model_needs_nothing(tmp_path: Path):
    """It is made at once, has a usable tokenizer and template, and no weights."""
    model = resolve("scripted", tmp_path, _quiet)
    assert not model.weights
    assert Tokenizer.from_file(str(model.path / "tokenizer.json")).encode("hi").ids
    assert (model.path / "chat_template.jinja").read_text()
    assert resolve("scripted", tmp_path, _quiet) == model


def test_the_scripted_model_keeps_its_tokenizer(tmp_path: Path):
    """A model that is prepared later does not change it under a running fleet."""
    before = resolve("scripted", tmp_path, _quiet)
    (tmp_path / "smollm2").mkdir()
    assert resolve("scripted", tmp_path, _quiet).tokenizer == before.tokenizer


def test_tiny_shares_the_tokenizer_of_smollm2(root: Path):
    """Both have the same tokenizer hash, and different revisions."""
    tiny, base = resolve("tiny", root, _quiet), resolve("smollm2", root, _quiet)
    assert tiny.tokenizer == base.tokenizer
    assert tiny.revision != base.revision
    assert tiny.weights
    config = json.loads((tiny.path / "config.json").read_text())
    assert config["torch_dtype"] == "float32"
    assert config["vocab_size"] == len(byte_vocabulary().tokens)


def test_a_local_folder_is_served_under_its_name(root: Path):
    """The folder's own name is the served name."""
    model = resolve(str(root / "smollm2"), root / "elsewhere", _quiet)
    assert (model.name, model.path) == ("smollm2", (root / "smollm2").resolve())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nothing", "expected smollm2, tiny, scripted"), ("a/b/c", "expected"), ("../x", "expected")],
)
def test_an_unknown_name_says_what_is_known(tmp_path: Path, name: str, reason: str):
    """The error lists what may be asked for."""
    with pytest.raises(ModelUnavailableError, match=reason):
        resolve(name, tmp_path, _quiet)


def test_a_folder_without_config_is_refused(tmp_path: Path):
    """The error names the missing file."""
    (tmp_path / "m").mkdir()
    with pytest.raises(ModelUnavailableError, match=r"config\.json"):
        resolve(str(tmp_path / "m"), tmp_path, _quiet)


def test_nothing_here_imports_torch():
    """Processes that only prepare or name models stay small."""
    assert "libs.models.resolve" in sys.modules
    heavy = {"torch", "transformers", "sglang"}
    imported = {
        name.partition(".")[0]
        for module in ("resolve", "prepare", "hashes", "vocabulary", "weights", "tiny", "api")
        for name in vars(sys.modules[f"libs.models.{module}"])
    }
    assert not heavy & imported
