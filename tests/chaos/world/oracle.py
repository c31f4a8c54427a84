"""The right answers, computed without any memory, transfer or process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from libs.engine.options import EngineKind, HostOptions
from libs.engine.script.answer import reference
from libs.engine.scripted import model_of, vocabulary_of
from libs.text import ModelText, Turn
from proto.ids import Incarnation
from proto.workers import Role

__all__ = ["Oracle", "Right"]


@dataclass(frozen=True, slots=True)
class Right:
    """What a complete answer must be."""

    text: str
    tokens: int
    finish: str
    prompt_tokens: int


class Oracle:
    """Answers questions as a faultless stack would."""

    def __init__(self, model_path: Path) -> None:
        options = HostOptions(
            kind=EngineKind.SCRIPTED,
            role=Role.AGGREGATED,
            incarnation=Incarnation("0" * 16),
            served_model="scripted",
            model_path=str(model_path),
        )
        self._vocabulary = vocabulary_of(options)
        self._model = model_of(options, self._vocabulary)
        self._text = ModelText.load(model_path)
        self.answer = cache(self._answer)

    def _answer(self, question: str, max_tokens: int, *, ignore_eos: bool) -> Right:
        turns = [Turn(role="user", content=question)]
        prompt = self._text.template.render(turns, unix_ms=0)
        ids = np.frombuffer(self._text.tokenizer.encode(prompt), dtype="<u4").tolist()
        tokens = reference(self._model, ids, max_tokens, ignore_eos=ignore_eos)
        eos = self._vocabulary.alphabet.eos
        stopped = not ignore_eos and tokens[-1] == eos
        stream = self._vocabulary.stream()
        text = "".join(stream.step(token) for token in tokens[: len(tokens) - stopped])
        return Right(text, len(tokens), "stop" if stopped else "length", len(ids))
