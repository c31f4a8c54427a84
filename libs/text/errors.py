"""How reading a model's text parts fails."""

from __future__ import annotations

__all__ = ["ModelTextError", "TemplateRefused"]


class ModelTextError(Exception):
    """The folder cannot be used; the text says what is missing or broken."""


class TemplateRefused(Exception):
    """The template does not accept these messages; the text may be shown to the caller."""
