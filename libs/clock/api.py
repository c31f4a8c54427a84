"""The clock port."""

from __future__ import annotations

from typing import Protocol

from proto.ids import Entropy

__all__ = ["Clock"]


class Clock(Protocol):
    """Time, sleep and randomness. Production uses `SystemClock`, simulation a virtual one.

    Timeouts use `asyncio.timeout`, which follows the loop's own clock in both.
    """

    entropy: Entropy

    def monotonic(self) -> float:
        """Return seconds on a clock that never jumps; for intervals and leases."""
        ...

    def unix_ms(self) -> int:
        """Return Unix time in milliseconds; for deadlines that cross processes."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
