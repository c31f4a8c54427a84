"""What came of a request so far, for any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proto.errors import PdbusError
from services.gateway.api import Part

__all__ = ["AnswerLog"]


class AnswerLog:
    """Grows at its end only; each reader starts at the first token."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.failure: PdbusError | None = None
        self.ended = False
        self._waiting: list[tuple[asyncio.Future[int], Callable[[Part], bool] | None]] = []

    def add(self, part: Part) -> None:
        """Append some tokens; nothing comes after the end."""
        if self.ended:
            return
        self.parts.append(part)
        woken = False
        for waiter, offer in self._waiting:
            # One that was cancelled is not yet out of its wait.
            if not waiter.done() and (offer is None or not offer(part)):
                waiter.set_result(len(self.parts) - 1)
                woken = True
        if woken:
            self._forget_woken()

    def end(self, failure: PdbusError | None) -> None:
        """Close the log; the first end stands."""
        if not self.ended:
            self.ended, self.failure = True, failure
            for waiter, _ in self._waiting:
                if not waiter.done():
                    waiter.set_result(len(self.parts))
            self._forget_woken()

    async def changed(self, offer: Callable[[Part], bool] | None = None) -> int:
        """Wait until something was added, or the log has ended; return how many parts were taken.

        Args:
            offer: called with each part where it is added; the wait goes on while it takes them.
        """
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, offer))
        try:
            return await waiter
        finally:
            self._waiting = [one for one in self._waiting if one[0] is not waiter]

    def _forget_woken(self) -> None:
        self._waiting = [one for one in self._waiting if not one[0].done()]
