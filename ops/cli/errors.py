"""How a command fails: one plain line and an exit code."""

from __future__ import annotations

__all__ = ["CommandError"]


class CommandError(Exception):
    """An expected failure; the text is the one line that the user reads.

    Args:
        text: what went wrong, and what to do about it where that is known.
        code: exit code of the program.
    """

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.text = text
        self.code = code
