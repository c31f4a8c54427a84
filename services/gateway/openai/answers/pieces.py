"""Single tokens as text and numbers that JSON can carry."""

from __future__ import annotations

import math

__all__ = ["LEAST", "finite", "shown"]

LEAST = -9999.0
"""Stands for what could not be drawn: JSON has no minus infinity."""


def shown(piece: bytes) -> str:
    """Return the text of a token; bytes that are no whole character are written in hex."""
    return piece.decode("utf-8", "backslashreplace")


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can carry."""
    return logprob if math.isfinite(logprob) and logprob > LEAST else LEAST
