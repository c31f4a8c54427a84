"""A model folder for the scripted engine whose answers are plain words, one a token.

With it the tokens of an answer can be read off its text: what is missing, doubled or out of place
shows. Answers of the built-in `scripted` model are bytes, which seldom make whole characters.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from libs.engine.options import EngineKind, HostOptions
from libs.engine.script.answer import Model, reference
from libs.engine.scripted import model_of, vocabulary_of
from libs.models.vocabulary import byte_vocabulary, write_tokenizer
from libs.text import ModelText, Turn
from proto.ids import Incarnation
from proto.workers import Role

__all__ = ["NAME", "Oracle", "write_words"]

NAME = "words"
"""Name of the folder, and so of the model."""

_SPACE = "\u0120"
_CONTEXT = 8192


def write_words(place: Path) -> Path:
    """Write the model folder below `place` and return it."""
    folder = place / NAME
    folder.mkdir(parents=True)
    plain = byte_vocabulary()
    words = tuple(
        f"{_SPACE}{a}{b}{c}" for a, b, c in itertools.product("bdgklmnrst", "aeiou", "nrl")
    )
    vocabulary = replace(plain, tokens=(*plain.tokens, *words))
    write_tokenizer(folder, vocabulary)
    config = {
        "architectures": ["ScriptedForCausalLM"],
        "model_type": "scripted",
        "vocab_size": len(vocabulary.tokens),
        "max_position_embeddings": _CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows the right answers of stacks that serve the folder."""

    text: ModelText
    model: Model

    @classmethod
    def load(cls, folder: Path) -> Oracle:
        """Return the oracle of a folder."""
        options = HostOptions(
            kind=EngineKind.SCRIPTED,
            role=Role.DECODE,
            incarnation=Incarnation("0" * 16),
            served_model=NAME,
            model_path=str(folder),
        )
        return cls(ModelText.load(folder), model_of(options, vocabulary_of(options)))

    def prompt(self, question: str) -> list[int]:
        """Return the prompt that the gateway makes of a question."""
        text = self.text.template.render([Turn(role="user", content=question)], unix_ms=0)
        return list(memoryview(self.text.tokenizer.encode(text)).cast("I"))

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return the first tokens of the right answer, which does not end by itself."""
        return reference(self.model, prompt, count, ignore_eos=True)

    def moved(self, question: str, count: int, *offsets: int) -> list[int]:
        """Return the right answer if another decode takes over at each of some offsets.

        The scripted model's KV of a token that it has said differs from that of one it was told,
        so what follows is the answer to prompt and first part together.
        """
        prompt = self.prompt(question)
        said: list[int] = []
        for end in (*offsets, count):
            said += self.answer([*prompt, *said], end - len(said))
        return said

    def say(self, ids: Sequence[int]) -> str:
        """Return the text of an answer."""
        return self.text.tokenizer.decode(b"".join(i.to_bytes(4, "little") for i in ids))
