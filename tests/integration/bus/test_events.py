"""Lifecycle events through a real JetStream."""

from __future__ import annotations

import asyncio
import time

import pytest
from nats.js import api

from libs.bus import BusDown
from libs.bus.jetstream.streams import read_stream
from libs.bus.testing import nats_server
from libs.telemetry import names
from proto.events import FINISHED, Event, EventKind
from proto.ids import InstanceId, RequestId
from proto.subjects import STREAM_EVENTS, event, events_of
from tests.integration.bus.words import fresh, until

pytestmark = pytest.mark.integration


def fact(rid: str | None, kind: EventKind = EventKind.REQUEST_ACCEPTED, attempt: int = 0, **data):
    """Return an event."""
    return Event(
        kind=kind,
        rid=None if rid is None else RequestId(rid),
        attempt=attempt,
        instance=InstanceId("gateway-1"),
        at_ms=time.time() * 1000,
        start_ms=0.0,
        data=data,
    )


def _keep(heard: list[Event]):
    """Return a handler that keeps what it gets."""
    return lambda _subject, each: heard.append(each)


async def test_all_events_of_one_request_are_read_back_in_order(shared_nats, connect):
    """A reader finds all events of a request and none of others, from whichever process."""
    gateway, decode, reader = [await connect(shared_nats) for _ in range(3)]
    rid, other = fresh("rid"), fresh("rid")
    for kind in (EventKind.REQUEST_ACCEPTED, EventKind.REQUEST_ASSIGNED, EventKind.STAGE_PLACE):
        gateway.emit(fact(rid, kind))
        gateway.emit(fact(other, kind))
    assert await gateway.flush_events(5)
    decode.emit(fact(rid, EventKind.STAGE_DECODE, tokens=7, lane="sysv"))
    assert await decode.flush_events(5)
    events = await reader.read_events(RequestId(rid))
    assert [event.kind for event in events] == [
        EventKind.REQUEST_ACCEPTED,
        EventKind.REQUEST_ASSIGNED,
        EventKind.STAGE_PLACE,
        EventKind.STAGE_DECODE,
    ]
    assert events[-1].data == {"tokens": 7, "lane": "sysv"}
    assert await reader.read_events(RequestId(fresh("unknown"))) == []


async def test_what_is_said_of_a_request_in_a_moment_is_one_message(shared_nats, connect):
    """It leaves with the end of the request; a subscriber gets each event of it, in order."""
    bus, hearer = await connect(shared_nats), await connect(shared_nats)
    rid, heard = fresh("rid"), []
    kinds = [EventKind.REQUEST_ACCEPTED, EventKind.REQUEST_ASSIGNED, EventKind.REQUEST_DONE]
    await hearer.subscribe(event(EventKind.REQUEST_DONE, RequestId(rid)), Event, _keep(heard))
    for kind in kinds:
        bus.emit(fact(rid, kind))
    await until(lambda: heard)
    assert [each.kind for each in heard] == kinds
    stored = read_stream(bus.link, STREAM_EVENTS, events_of(RequestId(rid)), timeout_s=5)
    assert len([message async for message in stored]) == 1
    assert await bus.read_events(RequestId(rid)) == heard


async def test_the_proofs_of_an_ordinary_end_travel_together(shared_nats, connect):
    """Both sides of a finished request are one message; a lease that was taken back leaves alone.

    That one leaves at once, because somebody may wait for it.
    """
    bus = await connect(shared_nats)
    rid, taken = fresh("rid"), fresh("rid")
    for side in ("src", "dst"):
        bus.emit(fact(rid, EventKind.LEASE_FREED, side=side, why=FINISHED))
        bus.emit(fact(taken, EventKind.LEASE_FREED, side=side, why="cancelled"))
    assert await bus.flush_events(5)
    for each, messages in ((rid, 1), (taken, 2)):
        stored = read_stream(bus.link, STREAM_EVENTS, events_of(RequestId(each)), timeout_s=5)
        assert len([message async for message in stored]) == messages
        assert [told.data["side"] for told in await bus.read_events(RequestId(each))] == [
            "src",
            "dst",
        ]


async def test_what_nobody_waits_for_leaves_all_the_same(shared_nats, connect):
    """Events of a request that goes on do not wait for its end."""
    bus, hearer = await connect(shared_nats), await connect(shared_nats)
    rid, heard = fresh("rid"), []
    await hearer.subscribe(events_of(RequestId(rid)), Event, _keep(heard))
    bus.emit(fact(rid, EventKind.STAGE_PLACE))
    bus.emit(fact(rid, EventKind.REQUEST_ASSIGNED))
    await until(lambda: heard)
    assert [each.kind for each in heard] == [EventKind.STAGE_PLACE, EventKind.REQUEST_ASSIGNED]


async def test_an_event_told_twice_is_stored_once(shared_nats, connect, metric):
    """The dedup key is the stream's message id; the second copy is acknowledged and dropped."""
    bus = await connect(shared_nats)
    rid = fresh("rid")
    before = metric(names.BUS_EVENTS_PUBLISHED.name, outcome="duplicate")
    bus.emit(fact(rid))
    bus.emit(fact(rid))
    bus.emit(fact(rid, attempt=1))
    assert await bus.flush_events(5)
    assert [event.attempt for event in await bus.read_events(RequestId(rid))] == [0, 1]
    assert metric(names.BUS_EVENTS_PUBLISHED.name, outcome="duplicate") == before + 1


async def test_events_without_a_request_are_never_taken_for_copies(shared_nats, connect, metric):
    """An engine that is ready twice within two minutes was ready twice."""
    bus = await connect(shared_nats)
    before = metric(names.BUS_EVENTS_PUBLISHED.name, outcome="stored")
    bus.emit(fact(None, EventKind.ENGINE_READY))
    await asyncio.sleep(0.01)
    bus.emit(fact(None, EventKind.ENGINE_READY))
    assert await bus.flush_events(5)
    assert metric(names.BUS_EVENTS_PUBLISHED.name, outcome="stored") == before + 2


async def test_more_events_than_a_page_are_read(shared_nats, connect):
    """Reading goes on over the pages of the server, and leaves no consumer behind."""
    bus = await connect(shared_nats)
    rid = fresh("rid")
    for attempt in range(700):
        bus.emit(fact(rid, attempt=attempt))
    assert await bus.flush_events(10)
    events = await bus.read_events(RequestId(rid))
    assert [event.attempt for event in events] == list(range(700))
    info = await bus.link.client.jetstream().stream_info(STREAM_EVENTS)
    assert info.state.consumer_count == 0


async def test_the_stream_is_bounded_and_on_disk(shared_nats, connect):
    """The stream is declared with limits: age, bytes, and the window of the dedup."""
    bus = await connect(shared_nats)
    bus.emit(fact(fresh("rid")))
    assert await bus.flush_events(5)
    config = (await bus.link.client.jetstream().stream_info(STREAM_EVENTS)).config
    assert config.subjects == ["pdbus.v1.events.>"]
    assert config.storage == api.StorageType.FILE
    assert config.retention == api.RetentionPolicy.LIMITS
    assert config.discard == api.DiscardPolicy.OLD
    assert config.max_age == 24 * 3600
    assert config.max_bytes == 256 * 1024 * 1024
    assert config.duplicate_window == 120


async def test_events_wait_out_an_outage(own_nats, connect):
    """Emit never blocks and never fails; what was emitted without a server is stored later."""
    bus = await connect(own_nats)
    rid = fresh("rid")
    bus.emit(fact(rid, attempt=0))
    assert await bus.flush_events(5)
    own_nats.kill()
    await until(lambda: not bus.connected)
    for attempt in range(1, 100):
        bus.emit(fact(rid, attempt=attempt))
    assert await bus.flush_events(0.3) is False
    await own_nats.start()
    assert await bus.flush_events(10)
    events = await bus.read_events(RequestId(rid))
    assert [event.attempt for event in events] == list(range(100))


async def test_events_on_their_way_when_the_server_dies_are_stored_once(own_nats, connect):
    """Kill -9 in a stream of events: none is lost or doubled, and the order is kept."""
    bus = await connect(own_nats, event_buffer=100_000)
    rid = fresh("rid")
    for attempt in range(3000):
        bus.emit(fact(rid, attempt=attempt))
    await until(lambda: len(bus._emitter) < 2800)
    own_nats.kill()
    await own_nats.start()
    assert await bus.flush_events(20)
    events = await bus.read_events(RequestId(rid), timeout_s=20)
    assert [event.attempt for event in events] == list(range(3000))


async def test_events_that_a_hanging_server_did_not_take_keep_their_order(own_nats, connect):
    """A round without acknowledgements is sent again, first event first."""
    bus = await connect(own_nats)
    rid = fresh("rid")
    bus.emit(fact(rid, attempt=0))
    assert await bus.flush_events(5)
    own_nats.pause()
    for attempt in range(1, 200):
        bus.emit(fact(rid, attempt=attempt))
    await asyncio.sleep(0.1)
    own_nats.kill()
    await own_nats.start()
    assert await bus.flush_events(10)
    events = await bus.read_events(RequestId(rid))
    assert [event.attempt for event in events] == list(range(200))


async def test_an_overflow_is_counted_and_bounded(own_nats, connect, metric):
    """A long outage costs events, not memory; the oldest are kept."""
    bus = await connect(own_nats, event_buffer=10)
    own_nats.kill()
    await until(lambda: not bus.connected)
    before = metric(names.BUS_EVENT_OVERFLOW.name)
    rid = fresh("rid")
    for attempt in range(25):
        bus.emit(fact(rid, attempt=attempt))
    assert metric(names.BUS_EVENT_OVERFLOW.name) == before + 15
    await own_nats.start()
    assert await bus.flush_events(10)
    assert [event.attempt for event in await bus.read_events(RequestId(rid))] == list(range(10))


async def test_an_event_that_does_not_fit_is_dropped_and_counted(shared_nats, connect, metric):
    """One monster does not hold up the others."""
    bus = await connect(shared_nats)
    before = metric(names.BUS_EVENTS_PUBLISHED.name, outcome="too_large")
    rid = fresh("rid")
    bus.emit(fact(rid, data_text="x" * bus.link.client.max_payload))
    bus.emit(fact(rid, attempt=1))
    assert await bus.flush_events(5)
    assert [event.attempt for event in await bus.read_events(RequestId(rid))] == [1]
    assert metric(names.BUS_EVENTS_PUBLISHED.name, outcome="too_large") == before + 1


async def test_drain_stores_the_last_events(shared_nats, connect):
    """What a process says at its end is kept."""
    bus, reader = await connect(shared_nats), await connect(shared_nats)
    rid = fresh("rid")
    for attempt in range(200):
        bus.emit(fact(rid, attempt=attempt))
    assert await bus.drain(5) is True
    assert len(await reader.read_events(RequestId(rid))) == 200


async def test_a_stream_that_the_server_lost_is_made_again(own_nats, connect):
    """The emitter declares the stream anew and goes on."""
    bus = await connect(own_nats)
    bus.emit(fact(fresh("rid")))
    assert await bus.flush_events(5)
    await bus.link.client.jetstream().delete_stream(STREAM_EVENTS)
    rid = fresh("rid")
    bus.emit(fact(rid))
    assert await bus.flush_events(5)
    assert len(await bus.read_events(RequestId(rid))) == 1


async def test_without_a_stream_reading_says_so(connect):
    """A server without JetStream is down for readers, and harmless for emitters."""
    async with nats_server(jetstream=False) as server:
        bus = await connect(server)
        bus.emit(fact(fresh("rid")))
        with pytest.raises(BusDown):
            await bus.read_events(RequestId("r"), timeout_s=1)
        assert await bus.drain(0.3) is False
