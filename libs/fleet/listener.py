"""Feeds heartbeats from the bus into a fleet."""

from __future__ import annotations

from collections.abc import Callable

from libs.bus.api import Bus, Subscription
from libs.clock.api import Clock
from libs.fleet.view import Fleet, Member
from proto import subjects
from proto.workers import Heartbeat

__all__ = ["FleetListener"]


class FleetListener:
    """Keeps a `Fleet` current for as long as it is open.

    Args:
        on_heard: called with each member that was heard, after the fleet has taken it in.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        clock: Clock,
        fleet: Fleet,
        on_heard: Callable[[Member], None] | None = None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._fleet = fleet
        self._on_heard = on_heard
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Begin to listen."""
        self._subscription = await self._bus.subscribe(
            subjects.ALL_HEARTBEATS, Heartbeat, self._hear
        )

    async def close(self) -> None:
        """Stop to listen."""
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    def _hear(self, _subject: str, heartbeat: Heartbeat) -> None:
        now = self._clock.monotonic()
        member = self._fleet.hear(heartbeat, now)
        self._fleet.forget(now)
        if member is not None and self._on_heard is not None:
            self._on_heard(member)
