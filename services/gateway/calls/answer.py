"""What came of a request so far, for any number of readers."""

from __future__ import annotations

import asyncio

from proto.errors import PdbusError
from services.gateway.api import Delta

__all__ = ["AnswerLog"]


class AnswerLog:
    """Grows at its end only; each reader starts at the first token."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.failure: PdbusError | None = None
        self.ended = False
        self._waiting: list[asyncio.Future[None]] = []

    def add(self, delta: Delta) -> None:
        """Append some tokens; nothing comes after the end."""
        if not self.ended:
            self.deltas.append(delta)
            self._tell()

    def end(self, failure: PdbusError | None) -> None:
        """Close the log; the first end stands."""
        if not self.ended:
            self.ended, self.failure = True, failure
            self._tell()

    async def changed(self) -> None:
        """Wait until something was added, or the log has ended."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _tell(self) -> None:
        if not self._waiting:
            # Readers are busy with what came before.
            return
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
