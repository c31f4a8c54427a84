"""The policy seam: a pure function from a candidate to a score."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from proto.router import Place, ScoreTerm
from proto.workers import Heartbeat

__all__ = ["Candidate", "Policy", "Score"]


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A place where an attempt could run."""

    decode: Heartbeat
    compat: str
    """Digest of the card that all workers of the place share."""
    prefill: Heartbeat | None
    """None where decode computes the prompt itself."""
    decode_pending: int = 0
    """Attempts that this router has placed there since its last heartbeat."""
    prefill_pending_tokens: int = 0
    """Prompt tokens that this router has placed there since its last heartbeat."""


class Score(msgspec.Struct, frozen=True):
    """Lower is better; the terms explain it."""

    terms: tuple[ScoreTerm, ...]

    @property
    def total(self) -> float:
        """The sum of the terms."""
        return sum(term.value for term in self.terms)


Policy = Callable[[Place, Candidate], Score]
"""Must be pure and take microseconds."""
