"""The clock port on virtual time."""

from __future__ import annotations

import asyncio
import random

from proto.ids import Entropy

__all__ = ["EPOCH_MS", "SimClock"]

EPOCH_MS = 1_700_000_000_000
"""Unix time of the world's first moment."""


class SimClock:
    """One process' clocks and its chance.

    Args:
        loop: the source of virtual time.
        seed: of this process' own chance.
        skew_ms: how far its Unix clock is from the truth; its monotonic clock has its own zero.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, *, skew_ms: float = 0.0) -> None:
        rng = random.Random(seed)
        self._loop = loop
        self._zero = rng.random() * 1e6
        self.skew_ms = skew_ms
        self.entropy: Entropy = rng

    def monotonic(self) -> float:
        """Return seconds on a clock that never jumps."""
        return self._zero + self._loop.time()

    def unix_ms(self) -> int:
        """Return Unix time in milliseconds, as this process believes."""
        return EPOCH_MS + int(self._loop.time() * 1000.0 + self.skew_ms)

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)
