"""The parts of the SGLang engine; only `libs.engine.sglang` puts them together."""

from __future__ import annotations

__all__: list[str] = []
