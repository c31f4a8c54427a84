"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Literal

from proto.openai.api import Answer
from proto.workers import Feature

__all__ = ["ModelInfo", "ModelList"]


class ModelInfo(Answer, frozen=True, kw_only=True):
    """One model that can be asked now."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix seconds."""
    owned_by: str = "pdbus"
    root: str
    """The model that this one is made of: itself."""
    parent: None = None
    max_model_len: int
    """Most tokens of prompt and answer together."""
    features: tuple[Feature, ...] = ()
    """What all its workers can do beyond plain text."""


class ModelList(Answer, frozen=True, kw_only=True):
    """All models that can be asked now."""

    object: Literal["list"] = "list"
    data: tuple[ModelInfo, ...]
