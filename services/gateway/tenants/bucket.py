"""A token bucket. Pure: the caller brings the time.

It holds what is allowed in a minute and fills evenly. What is taken must be there, or the bucket
must be full: a thing larger than the bucket is let through once it is full, and paid for after
that. So the rate holds over any longer time even where a share of a limit is smaller than a prompt.
"""

from __future__ import annotations

__all__ = ["MINUTE_S", "Bucket"]

MINUTE_S = 60.0
_HAIR = 1e-9
"""Below this two levels are the same: sums of fractions are never exact."""


class Bucket:
    """What is left of one limit.

    Args:
        limit: how much a minute allows.
        now_s: the time; it never goes backwards.
    """

    def __init__(self, limit: float, now_s: float) -> None:
        self._limit = limit
        self._level = limit
        self._at_s = now_s

    @property
    def limit(self) -> float:
        """How much a minute allows."""
        return self._limit

    def resize(self, limit: float, now_s: float) -> None:
        """Change the limit; what was taken stays taken."""
        self._fill(now_s)
        self._level += limit - self._limit
        self._limit = limit

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return how long until `amount` could be taken; 0 if now."""
        self._fill(now_s)
        missing = min(amount, self._limit) - self._level
        return missing / self._limit * MINUTE_S if missing > _HAIR * self._limit else 0.0

    def take(self, amount: float, now_s: float) -> float:
        """Take some, if it is there; return 0, or how long until it is."""
        wait_s = self.wait_s(amount, now_s)
        if not wait_s:
            self._level -= amount
        return wait_s

    def left(self, now_s: float) -> int:
        """Return how much could be taken now."""
        self._fill(now_s)
        return max(0, int(self._level + _HAIR * self._limit))

    def full_in_s(self, now_s: float) -> float:
        """Return how long until all of the limit is there again."""
        self._fill(now_s)
        return max(0.0, (self._limit - self._level) / self._limit * MINUTE_S)

    def _fill(self, now_s: float) -> None:
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s += passed_s
        self._level = min(self._limit, self._level + passed_s / MINUTE_S * self._limit)
