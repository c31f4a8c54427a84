"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Literal

from proto.openai.api import Answer

__all__ = ["ModelInfo", "ModelList"]


class ModelInfo(Answer, frozen=True, kw_only=True):
    """One model that can be asked now."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix seconds."""
    owned_by: str = "pdbus"
    max_model_len: int
    """Most tokens of prompt and answer together."""


class ModelList(Answer, frozen=True, kw_only=True):
    """All models that can be asked now."""

    object: Literal["list"] = "list"
    data: tuple[ModelInfo, ...]
