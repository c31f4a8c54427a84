"""What a prepared model is, and how preparing one fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ModelFolder", "ModelUnavailableError", "Progress"]

Progress = Callable[[str], None]
"""Takes one short sentence about what happens now, for people who wait."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A local folder in Hugging Face layout, ready to be loaded."""

    name: str
    """Served name."""
    path: Path
    revision: str
    """Hash of config and weights: `sha256:` (all bytes) or `headers:` (see `hashes`)."""
    tokenizer: str
    """Hash of the tokenizer and its chat template."""
    weights: bool
    """False for a folder that only the scripted engine can use."""


class ModelUnavailableError(Exception):
    """The model cannot be had on this machine; the text says why and what to do."""
