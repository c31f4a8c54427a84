"""Seeds that once found a bug in a service, and what it was. They are always run.

A seed means a world only for as long as the drawing stays as it is. Each bug below is therefore a
planted one as well: a test shows that its seed still finds it. Where worlds show its moment too
seldom, the planted one brings it about.
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


REGRESSIONS: tuple[Regression, ...] = (
    Regression(
        4,
        "a cancel overtakes a written end",
        "An operator's cancel came while DONE was being written: the client heard that its answer "
        "was cancelled, and the ledger said done.",
    ),
    Regression(
        510,
        "a guest mixes two attempts",
        "A reader who joined a moved answer got the first words of one attempt and the rest of "
        "another.",
    ),
)
