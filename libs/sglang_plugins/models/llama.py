"""SGLang's Llama, unchanged."""

from __future__ import annotations

from sglang.srt.models.llama import EntryClass

__all__ = ["EntryClass"]
