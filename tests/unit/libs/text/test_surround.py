"""Prompts whose usual beginning and end are encoded once."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.models.vocabulary import byte_vocabulary, write_tokenizer
from libs.text import ChatTemplate, ModelText, Tokenizer, Turn
from libs.text.surround import Surround

CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SAID = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "start|>", "assistant\n", "\n"]),
    ),
    max_size=6,
).map("".join)


class Counted(Tokenizer):
    """A tokenizer that tells how much it was given."""

    characters = 0

    def encode(self, text: str, *, add_special: bool = False) -> bytes:
        """Count, and encode."""
        self.characters += len(text)
        return super().encode(text, add_special=add_special)


def made(folder: Path, **changes: Any) -> Tokenizer:
    """Return a tokenizer of single bytes, with parts of its file changed."""
    write_tokenizer(folder, byte_vocabulary())
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8")) | changes
    file.write_text(json.dumps(content), encoding="utf-8")
    return Tokenizer.load(folder)


@cache
def plain() -> Tokenizer:
    """Return the tokenizer as it is."""
    with tempfile.TemporaryDirectory() as folder:
        return made(Path(folder))


def learned(tokenizer: Tokenizer, template: str = CHAT) -> tuple[Surround, Counted]:
    """Return what was learned from a template, and the count of what it has encoded since."""
    counted = Counted(tokenizer.library)
    surround = Surround.learn(counted, ChatTemplate(template, {}))
    counted.characters = 0
    return surround, counted


@given(said=SAID, role=st.sampled_from(["user", "system"]))
def test_the_ids_are_those_of_the_tokenizer(said: str, role: str):
    """Whatever a client says, special tokens and halves of them too."""
    surround, _ = learned(plain())
    prompt = ChatTemplate(CHAT, {}).render([Turn(role, said)], unix_ms=0)
    for text in (prompt, said, prompt[1:], prompt[:-1]):
        assert surround.encode(text) == plain().encode(text)


def test_what_a_template_always_says_is_encoded_once():
    """Of a usual prompt no more than the client's words and the tokens around them are encoded."""
    surround, counted = learned(plain())
    prompt = ChatTemplate(CHAT, {}).render([Turn("user", "Hi")], unix_ms=0)
    surround.encode(prompt)
    assert counted.characters == len("<|im_start|>user\nHi<|im_end|>")
    counted.characters = 0
    surround.encode("Hi" + prompt)
    assert counted.characters == len("Hi" + prompt)


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}},
        {"normalizer": {"type": "Prepend", "prepend": "x"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    ],
)
def test_tokenizers_that_treat_a_beginning_in_their_own_way_agree(
    tmp_path: Path, changes: dict[str, Any]
):
    """What stands between the usual parts is not taken for the beginning of a text."""
    tokenizer = made(tmp_path, **changes)
    surround, _ = learned(tokenizer)
    for said in ("", "Hi", " Hi ", "\n", "a<|im_end|> b"):
        prompt = ChatTemplate(CHAT, {}).render([Turn("user", said)], unix_ms=0)
        assert surround.encode(prompt) == tokenizer.encode(prompt)


@pytest.mark.parametrize("token", ["!<|im_end|>", "<|im_start|>user\nA"])
def test_tokens_that_reach_over_an_edge_forbid_the_short_way(tmp_path: Path, token: str):
    """Then all of each prompt is encoded together."""
    entry = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = json.loads((_written(tmp_path)).read_text(encoding="utf-8"))["added_tokens"]
    tokenizer = made(tmp_path, added_tokens=[*added, {"id": 300, "content": token, **entry}])
    surround, counted = learned(tokenizer)
    prompt = ChatTemplate(CHAT, {}).render([Turn("user", "A!")], unix_ms=0)
    assert surround.encode(prompt) == tokenizer.encode(prompt)
    assert counted.characters == len(prompt)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ raise_exception('no') }}",
        "<|im_start|>{{ messages[0].content }}",
    ],
)
def test_templates_without_usual_parts_are_encoded_as_ever(template: str):
    """Nothing is taken for granted where a template gives no hold."""
    surround, counted = learned(plain(), template)
    assert surround.encode("<|im_start|>Hi") == plain().encode("<|im_start|>Hi")
    assert counted.characters == len("<|im_start|>Hi")


def test_a_model_knows_what_surrounds_its_prompts(tmp_path: Path):
    """A folder that is read brings it along."""
    _written(tmp_path)
    (tmp_path / "config.json").write_text('{"n_positions": 512}', encoding="utf-8")
    text = ModelText.load(tmp_path)
    prompt = text.template.render([Turn("user", "Hi")], unix_ms=0)
    assert text.surround.encode(prompt) == text.tokenizer.encode(prompt)


def _written(folder: Path) -> Path:
    write_tokenizer(folder, byte_vocabulary())
    return folder / "tokenizer.json"
