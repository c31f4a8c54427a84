"""What may be wrong with settings."""

from __future__ import annotations

__all__ = ["SettingsError"]


class SettingsError(ValueError):
    """A setting is unknown, missing or out of bounds; the text names it and where it came from."""
