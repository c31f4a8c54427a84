"""Settings of the router."""

from __future__ import annotations

from typing import Literal

from libs.config import ServiceSettings

__all__ = ["Settings"]


class Settings(ServiceSettings, frozen=True, kw_only=True):
    """What the router needs beyond what all services need."""

    policy: Literal["least_loaded"] = "least_loaded"
    """How pairs of workers are scored."""
