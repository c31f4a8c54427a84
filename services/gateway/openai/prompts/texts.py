"""The models that can be asked, and their tokenizers and templates."""

from __future__ import annotations

from collections.abc import Mapping

from libs.telemetry import get_logger
from libs.text import ModelText
from proto.errors import ErrorCode, PdbusError
from proto.workers import Feature
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

    def check_features(self, name: str, needed: Mapping[Feature, str]) -> None:
        """Refuse what not every set of workers of a model can do.

        Args:
            needed: what a request needs, and the field that asks for it.

        Raises:
            PdbusError: `unsupported_parameter`.
        """
        for feature, field in needed.items():
            if not self.can(name, feature):
                raise PdbusError(
                    ErrorCode.UNSUPPORTED_PARAMETER,
                    f"'{field}': the workers of this model are not set up for it.",
                    param=field,
                )

    def can(self, name: str, feature: Feature) -> bool:
        """Return whether every set of workers of a model can do something."""
        return any(m.name == name and feature in m.features for m in self._fleet.models())

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
