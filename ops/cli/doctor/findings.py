"""What a check has found."""

from __future__ import annotations

from enum import StrEnum

import msgspec

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Works; something faster or safer is left unused."""
    WARNING = "warning"
    """Works now; will fail, or be slow, under load or elsewhere."""
    PROBLEM = "problem"
    """Does not work."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a check."""

    check: str
    level: Level
    text: str
    """What was found."""
    fix: str = ""
    """What to do about it; empty where nothing has to be done."""
