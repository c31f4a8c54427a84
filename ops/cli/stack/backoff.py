"""How long to wait before a process that ended is started again."""

from __future__ import annotations

__all__ = ["Backoff"]

FIRST_S = 0.5
LONGEST_S = 5.0
STEADY_S = 10.0
"""A process that lived this long was healthy: its end is a first one again."""


class Backoff:
    """The pauses of one process: none after its first end, then doubling up to a limit."""

    def __init__(self) -> None:
        self._ends = 0

    @property
    def quick_ends(self) -> int:
        """How many times in a row the process has ended soon after its start."""
        return self._ends

    def after(self, lived_s: float) -> float:
        """Return the pause, in seconds, after a process that lived for `lived_s`."""
        if lived_s >= STEADY_S:
            self._ends = 0
        self._ends += 1
        if self._ends == 1:
            return 0.0
        return min(LONGEST_S, FIRST_S * 2.0 ** (self._ends - 2))
