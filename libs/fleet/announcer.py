"""Announces one process to the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from libs.bus.api import Bus, BusDown, TooLarge
from libs.clock.api import Clock
from libs.telemetry import get_logger
from proto import subjects
from proto.ids import Incarnation
from proto.kv import PeerAddress
from proto.pairs import ANY_LANE, LanePolicy, PairReport
from proto.workers import (
    CompatCard,
    Feature,
    Heartbeat,
    LeaseRef,
    WorkerLoad,
    WorkerRef,
    WorkerState,
)

__all__ = ["PERIOD_S", "Announcer", "Presence", "pdbus_version"]

PERIOD_S = 1.0
_MIN_GAP_S = 0.02
_CALM_S = 0.2
"""Changes that nobody waits for are told within this: every process hears every heartbeat."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What a process says of itself in its next heartbeat."""

    ref: WorkerRef
    state: WorkerState
    reason: str = ""
    card: CompatCard | None = None
    address: PeerAddress | None = None
    load: WorkerLoad | None = None
    leases: tuple[LeaseRef, ...] = ()
    pids: tuple[int, ...] = ()
    features: tuple[Feature, ...] = ()
    kv_lanes: LanePolicy = ANY_LANE
    pairs: tuple[PairReport, ...] = ()


class Announcer:
    """Publishes a heartbeat once a second, at once when `hurry` is called, soon after `note`."""

    def __init__(self, *, bus: Bus, clock: Clock, describe: Callable[[], Presence]) -> None:
        self._bus = bus
        self._clock = clock
        self._describe = describe
        self._sequences: dict[Incarnation, int] = {}
        self._wake = asyncio.Event()
        self._hurried = False
        self._noted = False
        self._version = pdbus_version()

    def hurry(self) -> None:
        """Announce now: something changed that others wait for."""
        self._hurried = True
        self._wake.set()

    def note(self) -> None:
        """Announce soon, together with what else changes: nobody waits for it."""
        if not self._noted:
            self._noted = True
            self._wake.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            self._hurried = self._noted = False
            told_s = self._clock.monotonic()
            await self.announce()
            # A burst of changes becomes one heartbeat.
            await self._clock.sleep(_MIN_GAP_S)
            await self._until_due(told_s)

    async def _until_due(self, told_s: float) -> None:
        """Wait until the next heartbeat is due, given when the last one was told."""
        while not self._hurried:
            due_s = told_s + (_CALM_S if self._noted else PERIOD_S)
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, due_s - self._clock.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def announce(self) -> None:
        """Publish one heartbeat; while the bus is down it is skipped, as it would be stale."""
        presence = self._describe()
        ref = presence.ref
        sequence = self._sequences.get(ref.incarnation, 0) + 1
        self._sequences = {ref.incarnation: sequence}
        heartbeat = Heartbeat(
            role=ref.role,
            instance=ref.instance,
            incarnation=ref.incarnation,
            version=self._version,
            sequence=sequence,
            sent_ms=self._clock.unix_ms(),
            state=presence.state,
            reason=presence.reason,
            card=presence.card,
            address=presence.address,
            load=presence.load,
            leases=presence.leases,
            pids=presence.pids,
            features=presence.features,
            kv_lanes=presence.kv_lanes,
            pairs=presence.pairs,
        )
        subject = subjects.heartbeat(ref.role, ref.instance, ref.incarnation)
        try:
            await self._bus.publish(subject, heartbeat)
        except BusDown:
            pass
        except TooLarge:
            get_logger().error("heartbeat does not fit", leases=len(presence.leases))


def pdbus_version() -> str:
    """Return the version of the installed product."""
    try:
        return version("pdbus")
    except PackageNotFoundError:
        return "0.0.0"
