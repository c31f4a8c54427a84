"""What came of a request so far, for any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from proto.errors import PdbusError
from services.gateway.api import Delta

__all__ = ["AnswerLog"]


class AnswerLog:
    """Grows at its end only; each reader starts at the first token."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.failure: PdbusError | None = None
        self.ended = False
        self._changed = asyncio.Event()

    def add(self, delta: Delta) -> None:
        """Append some tokens."""
        self.deltas.append(delta)
        self._tell()

    def end(self, failure: PdbusError | None) -> None:
        """Close the log; the first end stands."""
        if not self.ended:
            self.ended, self.failure = True, failure
            self._tell()

    async def read(self, position: int) -> AsyncGenerator[tuple[int, Delta], None]:
        """Yield positions and deltas from `position` on, and wait for more until the end.

        Raises:
            PdbusError: the request failed, after all that came before has been yielded.
        """
        while True:
            while position < len(self.deltas):
                yield position, self.deltas[position]
                position += 1
            if self.failure is not None:
                raise self.failure
            if self.ended:
                return
            await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
