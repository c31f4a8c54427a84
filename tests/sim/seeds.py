"""Seeds that once found a bug in a service, and what it was. They are always run.

A seed means a world only for as long as the drawing stays as it is. Each bug below is therefore a
mutant as well, which proves that some seed would find it again.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REGRESSIONS", "Regression"]


@dataclass(frozen=True, slots=True)
class Regression:
    """A seed, and why it is kept."""

    seed: int
    mutant: str
    """The planted bug that is the same as the one that was found."""
    reason: str


REGRESSIONS: tuple[Regression, ...] = ()
