"""The real clock."""

from __future__ import annotations

import asyncio
import secrets
import time

from proto.ids import Entropy

__all__ = ["SystemClock"]


class SystemClock:
    """The machine's clocks and its source of randomness."""

    def __init__(self) -> None:
        self.entropy: Entropy = secrets.SystemRandom()

    # Asked for dozens of times a request: the library's own function, not one around it.
    monotonic = staticmethod(time.monotonic)
    """Return seconds on the monotonic clock."""

    def unix_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Wait on the running loop."""
        await asyncio.sleep(seconds)
