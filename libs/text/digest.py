"""Identity of a tokenizer with its chat template, equal to the one on the workers' cards."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["TOKENIZER_FILES", "tokenizer_digest"]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
"""What decides how text becomes tokens."""

_DIGITS = 32


def tokenizer_digest(folder: Path) -> str:
    """Return `sha256:` and 32 hex digits over the files that decide how text becomes tokens."""
    digest = hashlib.sha256()
    for name in TOKENIZER_FILES:
        file = folder / name
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"{name}:{len(content)}\n".encode())
            digest.update(content)
    return f"sha256:{digest.hexdigest()[:_DIGITS]}"
