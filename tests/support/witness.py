"""A listener on the bus of a running stack: what it says of itself while a test drives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from libs.bus import Bus, BusSettings, NatsBus, open_bus
from libs.clock import SystemClock
from libs.lifecycle import Tasks
from proto import subjects
from proto.control import Cancel
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId
from proto.workers import Heartbeat, LeaseRef, Role

__all__ = ["Witness", "witness"]

WORKERS = frozenset({Role.PREFILL, Role.DECODE, Role.AGGREGATED})


class Witness:
    """Everything that was heard since the start of the test."""

    def __init__(self, bus: NatsBus) -> None:
        self.bus = bus
        self.events: list[Event] = []
        self.cancels: list[Cancel] = []
        self.beats: dict[InstanceId, Heartbeat] = {}
        self._news = asyncio.Event()

    async def listen(self, bus: Bus) -> None:
        """Hear events, cancels and heartbeats."""
        await bus.subscribe(subjects.ALL_EVENTS, Event, self._on_event)
        await bus.subscribe(subjects.ALL_CANCELS, Cancel, self._on_cancel)
        await bus.subscribe(subjects.ALL_HEARTBEATS, Heartbeat, self._on_beat)

    async def until(
        self, condition: Callable[[], object], timeout_s: float, what: str = "it"
    ) -> None:
        """Wait until what was heard makes a condition true."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(
                f"{what} did not come true within {timeout_s:g} s\n{self.report()}"
            ) from None

    def of(self, rid: str, *kinds: EventKind) -> list[Event]:
        """Return the events of a request."""
        return [e for e in self.events if e.rid == rid and (not kinds or e.kind in kinds)]

    def newest_request(self) -> RequestId | None:
        """Return the request that was accepted last."""
        accepted = [e.rid for e in self.events if e.kind is EventKind.REQUEST_ACCEPTED]
        return accepted[-1] if accepted else None

    def kv_used(self, *roles: Role) -> int:
        """Return how many KV tokens the engines of some roles hold, by their last heartbeat."""
        beats = self._workers(*roles)
        return sum(beat.load.kv_used_tokens for beat in beats if beat.load)

    def leases(self) -> list[LeaseRef]:
        """Return all leases that are open, by the last heartbeats."""
        return [lease for beat in self._workers() for lease in beat.leases]

    def report(self, rids: Collection[str] = ()) -> str:
        """Return what was heard (of some requests, or of all), for the report of a failed test."""
        lines = [
            f"{e.at_ms:.0f} {e.instance} {e.kind} {e.rid} #{e.attempt} {e.data}"
            for e in self.events
            if not rids or e.rid in rids
        ]
        lines += [
            f"{b.instance} {b.state} {b.reason} {b.load} {[x.lease for x in b.leases]}"
            for b in self.beats.values()
        ]
        return "\n".join(lines[-60:])

    def _workers(self, *roles: Role) -> list[Heartbeat]:
        wanted = frozenset(roles) or WORKERS
        return [beat for beat in self.beats.values() if beat.role in wanted]

    def _on_event(self, _subject: str, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def _on_cancel(self, _subject: str, cancel: Cancel) -> None:
        self.cancels.append(cancel)
        self._news.set()

    def _on_beat(self, _subject: str, beat: Heartbeat) -> None:
        self.beats[beat.instance] = beat
        self._news.set()


@asynccontextmanager
async def witness(url: str) -> AsyncIterator[Witness]:
    """Listen for the length of the context."""
    async with Tasks() as tasks:
        settings = BusSettings(urls=(url,), name="witness", startup_deadline_s=5.0)
        bus = await open_bus(settings, SystemClock(), tasks)
        try:
            heard = Witness(bus)
            await heard.listen(bus)
            yield heard
        finally:
            await bus.close()
