"""A clock that moves when told."""

from __future__ import annotations

from libs.clock import SystemClock


class HandClock(SystemClock):
    """Virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
