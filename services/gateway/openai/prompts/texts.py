"""The models that can be asked, and their tokenizers and templates."""

from __future__ import annotations

from collections.abc import Mapping

from libs.telemetry import get_logger
from libs.text import ModelText
from proto.errors import ErrorCode, PdbusError
from services.gateway.api import FleetView, ServedModel

__all__ = ["ModelDetokenizer", "Texts"]


class Texts:
    """The models that this gateway can speak for, and of those the ones that are served now."""

    def __init__(self, texts: Mapping[str, ModelText], fleet: FleetView) -> None:
        self._texts = texts
        self._fleet = fleet
        self._told: set[str] = set()

    def served(self) -> tuple[tuple[str, int], ...]:
        """Return name and context length of each model that can be asked now."""
        return tuple(
            (model.name, self.context_tokens(model))
            for model in self._fleet.models()
            if self._fits(model)
        )

    def find(self, name: str) -> tuple[ModelText, int]:
        """Return the text side of a served model, and its context length.

        Raises:
            PdbusError: `model_not_found`, or `no_worker` for a model that is only not served now.
        """
        for model in self._fleet.models():
            if model.name == name and self._fits(model):
                return self._texts[name], self.context_tokens(model)
        if name in self._texts:
            raise PdbusError(ErrorCode.NO_WORKER, "no set of workers serves the model now")
        raise PdbusError(
            ErrorCode.MODEL_NOT_FOUND, f"The model '{name}' does not exist.", param="model"
        )

    def context_tokens(self, model: ServedModel) -> int:
        """Return how many tokens prompt and answer may have together."""
        own = self._texts[model.name].context_tokens
        return min(own, model.context_tokens) if model.context_tokens else own

    def _fits(self, model: ServedModel) -> bool:
        text = self._texts.get(model.name)
        if text is None:
            return False
        if not model.tokenizer or model.tokenizer == text.digest:
            return True
        if model.tokenizer not in self._told:
            self._told.add(model.tokenizer)
            get_logger().error(
                "tokenizer differs from the workers",
                model=model.name,
                ours=text.digest,
                theirs=model.tokenizer,
            )
        return False


class ModelDetokenizer:
    """Turns emitted tokens back into text, with the tokenizers of this gateway."""

    def __init__(self, texts: Mapping[str, ModelText]) -> None:
        self._texts = texts

    def text_of(self, model: str, ids: bytes) -> str | None:
        """Return the text of some tokens, or None if the model is not known here."""
        text = self._texts.get(model)
        return None if text is None else text.tokenizer.decode(ids)
