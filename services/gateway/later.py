"""What can wait until messages that are due have left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["later"]


def later(tell: Callable[[], None]) -> None:
    """Call once what is sent in this turn of the loop has left; in the order of these calls.

    Messages leave at the end of a turn. What is only told to operators is told behind them, so that
    no client waits for it.
    """
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, tell)
