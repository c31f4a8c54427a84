"""Everything that the bus says while a run goes on, and what it has kept at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from libs.bus import BucketSpec, BusError, BusSettings, NatsBus, open_bus
from libs.bus.jetstream import events_in
from libs.bus.jetstream.streams import read_stream
from libs.clock import SystemClock
from libs.lifecycle import Tasks
from proto import subjects
from proto.events import Event
from proto.ids import Incarnation, InstanceId, LeaseId, RequestId
from proto.ledger import RequestRecord
from proto.workers import Heartbeat, WorkerState

__all__ = ["Watcher", "open_watcher"]

_READ_S = 60.0
_SCAN_EVERY_S = 3.0


@dataclass(slots=True)
class Listed:
    """One lease as heartbeats told it."""

    lease: LeaseId
    rid: RequestId
    instance: InstanceId
    attempt: int
    side: str
    last_ms: int
    """When it was last listed as open, by its owner's clock."""


@dataclass
class Watcher:
    """A listener that is no part of the system under test."""

    bus: NatsBus
    beats: dict[InstanceId, Heartbeat] = field(default_factory=dict)
    """The newest of each process."""
    heard: list[Event] = field(default_factory=list)
    listed: dict[str, Listed] = field(default_factory=dict)
    """By lease."""
    ready_ms: dict[Incarnation, tuple[InstanceId, int]] = field(default_factory=dict)
    """When each incarnation first said that it is ready."""
    ended: dict[RequestId, RequestRecord] = field(default_factory=dict)
    """Records that were seen in a terminal state."""
    turned: list[str] = field(default_factory=list)
    """Terminal records that changed their state afterwards."""

    async def listen(self) -> None:
        """Hear heartbeats and events."""
        await self.bus.subscribe(subjects.ALL_HEARTBEATS, Heartbeat, self._on_beat)
        await self.bus.subscribe(subjects.ALL_EVENTS, Event, self._on_event)

    async def keep_scanning(self) -> None:
        """Look at the ledger again and again: what has ended must stay as it is."""
        while True:
            await asyncio.sleep(_SCAN_EVERY_S)
            try:
                self.compare(await self.records())
            except BusError:
                continue  # nats-server is away just now

    def compare(self, records: dict[RequestId, RequestRecord]) -> None:
        """Note which terminal records have changed."""
        for rid, record in records.items():
            before = self.ended.get(rid)
            if before is not None and (record.state, record.error) != (before.state, before.error):
                self.turned.append(
                    f"{rid}: {before.state} {before.error} became {record.state} {record.error}"
                )
            if record.ended:
                self.ended[rid] = record

    async def records(self) -> dict[RequestId, RequestRecord]:
        """Return the whole ledger."""
        store = self.bus.store(BucketSpec(name=subjects.BUCKET_REQUESTS), RequestRecord)
        found: dict[RequestId, RequestRecord] = {}
        async for _, version in store.scan(timeout_s=_READ_S):
            found[version.value.rid] = version.value
        return found

    async def stored_events(self) -> list[Event]:
        """Return all events that the stream keeps, oldest first."""
        stream = read_stream(
            self.bus.link, subjects.STREAM_EVENTS, subjects.ALL_EVENTS, timeout_s=_READ_S
        )
        found: dict[str, Event] = {}
        async for message in stream:
            for event in events_in(message.data):
                found.setdefault(event.dedup_key, event)
        return list(found.values())

    def _on_beat(self, _subject: str, beat: Heartbeat) -> None:
        known = self.beats.get(beat.instance)
        if known is not None and known.sent_ms > beat.sent_ms:
            return  # a late copy
        self.beats[beat.instance] = beat
        if beat.state is WorkerState.READY:
            self.ready_ms.setdefault(beat.incarnation, (beat.instance, beat.sent_ms))
        for lease in beat.leases:
            seen = self.listed.get(lease.lease)
            if seen is None:
                self.listed[lease.lease] = Listed(
                    lease.lease, lease.rid, beat.instance, lease.attempt, lease.side, beat.sent_ms
                )
            else:
                seen.last_ms = beat.sent_ms

    def _on_event(self, _subject: str, event: Event) -> None:
        self.heard.append(event)


@asynccontextmanager
async def open_watcher(url: str) -> AsyncIterator[Watcher]:
    """Watch for the length of the context."""
    async with Tasks() as tasks:
        settings = BusSettings(urls=(url,), name="chaos-watcher", startup_deadline_s=15.0)
        bus = await open_bus(settings, SystemClock(), tasks)
        try:
            watcher = Watcher(bus)
            await watcher.listen()
            tasks.spawn(watcher.keep_scanning(), name="scan")
            yield watcher
        finally:
            await bus.close()
