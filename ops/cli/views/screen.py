"""The console on which tables are shown."""

from __future__ import annotations

from rich.console import Console

__all__ = ["screen"]

_PIPE_COLUMNS = 200


def screen() -> Console:
    """Return the terminal; in a pipe or a file lines are long rather than folded."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)
