"""Whether anybody still reads: an attempt that no living gateway follows stops by itself.

In the ordinary course a gateway cancels, or cleanup does it for a dead one. This is for the worker
that is cut off from both.
"""

from __future__ import annotations

from libs.bus.api import Bus, Subscription
from libs.clock.api import Clock
from libs.worker.attempt import Attempt
from proto import subjects
from proto.ids import Incarnation
from proto.workers import Heartbeat

__all__ = ["ORPHAN_S", "GatewayWatch"]

ORPHAN_S = 15.0
"""Silence of all gateways that follow an attempt, after which it stops."""


class GatewayWatch:
    """When each gateway was last heard."""

    def __init__(self, *, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._heard_s: dict[Incarnation, float] = {}
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begin to listen."""
        self._subscription = await self._bus.subscribe(
            subjects.GATEWAY_HEARTBEATS, Heartbeat, self._hear
        )

    async def close(self) -> None:
        """Stop to listen."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    def orphaned(self, attempt: Attempt, now_s: float) -> bool:
        """Return whether no gateway that follows an attempt was heard for 15 s."""
        heard = [self._heard_s.get(g, attempt.started_s) for g in attempt.gateways()]
        return now_s - max(attempt.started_s, *heard) > ORPHAN_S

    def _hear(self, _subject: str, heartbeat: Heartbeat) -> None:
        now = self._clock.monotonic()
        self._heard_s[heartbeat.incarnation] = now
        for incarnation, since in list(self._heard_s.items()):
            if now - since > 2 * ORPHAN_S:
                del self._heard_s[incarnation]
