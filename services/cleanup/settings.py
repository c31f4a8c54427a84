"""Settings of cleanup."""

from __future__ import annotations

from libs.config import ServiceSettings

__all__ = ["Settings"]


class Settings(ServiceSettings, frozen=True, kw_only=True):
    """Cleanup needs what all services need."""
