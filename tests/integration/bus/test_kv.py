"""The ledger on a real JetStream."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest
from nats.js import api

from libs.bus import (
    BucketSpec,
    BusDown,
    BusError,
    Conflict,
    NatsBus,
    NatsStore,
    RequestTimeout,
    StoreUnknown,
    TooLarge,
)
from libs.bus.testing import nats_server
from proto.base import encode
from proto.control import Abort
from proto.ids import RequestId
from tests.integration.bus.words import fresh, until

pytestmark = pytest.mark.integration


def record(word: str) -> Abort:
    """Return a record that is told apart by a word."""
    return Abort(rid=RequestId(word), attempt=0)


def store_on(bus: NatsBus, **spec) -> NatsStore[Abort]:
    """Return a store on a bucket of its own."""
    return bus.store(BucketSpec(name=spec.pop("name", None) or fresh("B"), **spec), Abort)


async def items(store: NatsStore[Abort]) -> dict[str, Abort]:
    """Return all records of a store."""
    return {key: found.value async for key, found in store.scan()}


async def test_a_record_lives_through_create_update_and_get(shared_nats, connect):
    """Each write gives the revision for the next one; a read gives value and revision."""
    store = store_on(await connect(shared_nats))
    assert await store.get("k") is None
    first = await store.create("k", record("a"))
    second = await store.update("k", record("b"), first)
    found = await store.get("k")
    assert (found.value, found.revision) == (record("b"), second)
    assert second > first


async def test_only_one_of_many_writers_wins(shared_nats, connect):
    """Create and update are compare-and-set, from several connections at once."""
    name = fresh("B")
    stores = [store_on(await connect(shared_nats), name=name) for _ in range(4)]
    created = await asyncio.gather(
        *(s.create("k", record(str(n))) for n, s in enumerate(stores)), return_exceptions=True
    )
    revisions = [r for r in created if isinstance(r, int)]
    assert len(revisions) == 1
    assert sum(isinstance(r, Conflict) for r in created) == 3
    updated = await asyncio.gather(
        *(s.update("k", record(f"u{n}"), revisions[0]) for n, s in enumerate(stores)),
        return_exceptions=True,
    )
    assert sum(isinstance(r, int) for r in updated) == 1
    assert sum(isinstance(r, Conflict) for r in updated) == 3


async def test_an_update_of_an_absent_record_is_a_conflict(shared_nats, connect):
    """There is no revision that an absent record has."""
    store = store_on(await connect(shared_nats))
    with pytest.raises(Conflict):
        await store.update("k", record("a"), 7)


@pytest.mark.parametrize("remove", ["delete", "purge"])
async def test_a_removed_record_is_absent_and_can_be_created_again(shared_nats, connect, remove):
    """A marker of a removal is no record, and no obstacle."""
    bus = await connect(shared_nats)
    name = fresh("B")
    store = store_on(bus, name=name)
    await store.create("k", record("a"))
    await store.create("other", record("o"))
    bucket = await bus.link.client.jetstream().key_value(name)
    await getattr(bucket, remove)("k")
    assert await store.get("k") is None
    assert await items(store) == {"other": record("o")}
    revision = await store.create("k", record("b"))
    assert (await store.get("k")).revision == revision
    with pytest.raises(Conflict):
        await store.create("k", record("c"))


async def test_an_expiry_marker_is_absent_and_can_be_written_over(shared_nats, connect):
    """nats-py reads the marker as an entry with value None, and its create fails on it."""
    bus = await connect(shared_nats)
    name = fresh("B")
    bucket = await bus.link.client.jetstream().create_key_value(
        bucket=name, history=1, direct=True, ttl=3600, limit_marker_ttl=60
    )
    store = store_on(bus, name=name)
    await bucket.create("k", encode(record("a")), msg_ttl=1)
    assert (await store.get("k")).value == record("a")
    async with asyncio.timeout(5):
        while await store.get("k") is not None:
            await asyncio.sleep(0.05)
    assert (await bucket.get("k")).value is None, "there is no marker: the test proves nothing"
    assert await items(store) == {}
    revision = await store.create("k", record("b"))
    assert await store.update("k", record("c"), revision) > revision


async def test_records_expire_after_their_last_write(shared_nats, connect):
    """The bucket's age limit counts from the update, is not lost by it, and frees the key."""
    store = store_on(await connect(shared_nats), ttl_s=1.0)
    revision = await store.create("k", record("a"))
    await asyncio.sleep(0.7)
    await store.update("k", record("b"), revision)
    await asyncio.sleep(0.7)
    assert (await store.get("k")).value == record("b")
    async with asyncio.timeout(5):
        while await store.get("k") is not None:
            await asyncio.sleep(0.05)
    assert await store.create("k", record("c")) > revision


async def test_the_bucket_is_declared_as_the_ledger_needs_it(shared_nats, connect):
    """File storage, one revision a key, direct reads, one hour: checked at the server."""
    bus = await connect(shared_nats)
    name = fresh("B")
    await bus.store(BucketSpec(name=name), Abort).ensure_bucket()
    config = (await bus.link.client.jetstream().stream_info(f"KV_{name}")).config
    assert config.storage == api.StorageType.FILE
    assert config.max_msgs_per_subject == 1
    assert config.allow_direct is True
    assert config.max_age == 3600
    assert config.discard == api.DiscardPolicy.NEW
    assert config.deny_delete is True
    assert config.allow_rollup_hdrs is True
    assert config.duplicate_window == 120


async def test_many_processes_may_make_the_bucket_at_once(shared_nats, connect):
    """The first start of a fleet is a race that all win, with equal and with other settings."""
    name = fresh("B")
    buses = [await connect(shared_nats) for _ in range(4)]
    stores = [
        store_on(bus, name=name, ttl_s=3600.0 if n < 3 else 1800.0) for n, bus in enumerate(buses)
    ]
    await asyncio.gather(*(store.ensure_bucket() for store in stores * 4))
    await stores[0].create("k", record("a"))
    assert [(await store.get("k")).value for store in stores] == [record("a")] * 4


async def test_scan_sees_every_record_over_many_pages(shared_nats, connect):
    """Reconciliation goes through all live records, in their newest version, without a consumer."""
    bus = await connect(shared_nats)
    name = fresh("B")
    store = store_on(bus, name=name)
    await asyncio.gather(*(store.create(f"k{n}", record("old")) for n in range(600)))
    for n in range(0, 600, 7):
        found = await store.get(f"k{n}")
        await store.update(f"k{n}", record("new"), found.revision)
    seen = await items(store)
    assert len(seen) == 600
    assert {n for n in range(600) if seen[f"k{n}"] == record("new")} == set(range(0, 600, 7))
    info = await bus.link.client.jetstream().stream_info(f"KV_{name}")
    assert info.state.consumer_count == 0


async def test_a_scan_of_an_empty_bucket_is_empty(shared_nats, connect):
    """No records, no fault."""
    assert await items(store_on(await connect(shared_nats))) == {}


async def test_a_record_that_cannot_be_read_spoils_neither_scan_nor_others(shared_nats, connect):
    """Foreign bytes in the bucket are a fault of that key only."""
    bus = await connect(shared_nats)
    name = fresh("B")
    store = store_on(bus, name=name)
    await store.create("good", record("a"))
    bucket = await bus.link.client.jetstream().key_value(name)
    await bucket.put("bad", b"\xff\xff")
    assert await items(store) == {"good": record("a")}
    with pytest.raises(BusError):
        await store.get("bad")
    with pytest.raises(Conflict):
        await store.create("bad", record("b"))


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "*", "a.>", "a\r\nb", "é"])
async def test_keys_that_nats_would_misread_are_refused(shared_nats, connect, key):
    """A key is never a wildcard, and never protocol."""
    store = store_on(await connect(shared_nats))
    for operation in (store.get(key), store.create(key, record("a"))):
        with pytest.raises(ValueError, match="is no key"):
            await operation


async def test_a_record_too_large_is_refused_here(shared_nats, connect):
    """A record over the server's limit does not reach the connection."""
    bus = await connect(shared_nats)
    store = store_on(bus)
    with pytest.raises(TooLarge):
        await store.create("k", record("x" * bus.link.client.max_payload))


async def test_without_a_connection_the_store_is_down_at_once(own_nats, connect):
    """Reads and writes fail as `BusDown`: certainly nothing happened."""
    store = store_on(await connect(own_nats))
    revision = await store.create("k", record("a"))
    own_nats.kill()
    bus = store._link
    await until(lambda: not bus.connected)
    async with asyncio.timeout(1):
        with pytest.raises(BusDown):
            await store.get("k")
        with pytest.raises(BusDown):
            await store.update("k", record("b"), revision)
        with pytest.raises(BusDown):
            await store.create("k2", record("b"))
        with pytest.raises(BusDown):
            await items(store)


async def test_a_server_that_hangs_leaves_a_write_unknown_and_a_read_late(own_nats, connect):
    """Every wait has a deadline; a write without acknowledgement may have happened."""
    bus = await connect(own_nats, ping_interval_s=60)
    store = bus.store(BucketSpec(name=fresh("B")), Abort, timeout_s=0.2)
    revision = await store.create("k", record("a"))
    own_nats.pause()
    async with asyncio.timeout(3):
        with pytest.raises(StoreUnknown):
            await store.update("k", record("b"), revision)
        with pytest.raises(StoreUnknown):
            await store.create("k2", record("b"))
        with pytest.raises(RequestTimeout):
            await store.get("k")
    own_nats.resume()
    await bus.link.barrier()
    assert (await store.get("k")).value == record("b")


async def test_acknowledged_records_survive_kill_minus_nine(own_nats, connect):
    """File storage: after a crash of the server every acknowledged write is there."""
    bus = await connect(own_nats)
    store = store_on(bus)
    for n in range(50):
        await store.create(f"k{n}", record(str(n)))
    own_nats.kill()
    await own_nats.start()
    await until(lambda: bus.connected)
    assert await items(store) == {f"k{n}": record(str(n)) for n in range(50)}
    revision = (await store.get("k7")).revision
    assert await store.update("k7", record("new"), revision) > revision


async def test_a_bucket_that_the_server_lost_is_made_again(shared_nats, connect):
    """After the loss of the stream one operation fails, and the next makes the bucket anew."""
    bus = await connect(shared_nats)
    name = fresh("B")
    store = store_on(bus, name=name)
    await store.create("k", record("a"))
    await bus.link.client.jetstream().delete_key_value(name)
    with pytest.raises(BusDown):
        await store.create("k", record("b"))
    assert await store.create("k", record("b")) == 1


async def test_without_jetstream_the_wait_for_the_bucket_ends(connect):
    """A server without JetStream gives a plain reason, after the deadline and not for ever."""
    async with nats_server(jetstream=False) as server:
        store = store_on(await connect(server))
        with pytest.raises(BusDown, match="is not available"):
            await store.ensure_bucket(0.3)


async def test_a_bucket_waits_for_a_jetstream_that_starts_late(own_nats, connect):
    """JetStream may come after the first connection."""
    own_nats.kill()
    own_nats._jetstream = False
    await own_nats.start()
    store = store_on(await connect(own_nats))
    async with asyncio.TaskGroup() as group:
        ensuring = group.create_task(store.ensure_bucket(10))
        await asyncio.sleep(0.2)
        assert not ensuring.done()
        own_nats.kill()
        own_nats._jetstream = True
        await own_nats.start()
    assert await store.create("k", record("a")) == 1


async def test_the_wrong_revision_is_known_by_both_codes(shared_nats):
    """The server says 10071 here; if it changes its mind, this test says so."""
    raw = await nats.connect(shared_nats.url)
    bucket = await raw.jetstream().create_key_value(bucket=fresh("B"), direct=True)
    await bucket.put("k", b"x")
    reply = await raw.request(
        f"{bucket._pre}k", b"y", headers={"Nats-Expected-Last-Subject-Sequence": "0"}, timeout=2
    )
    await raw.close()
    assert json.loads(reply.data)["error"]["err_code"] in {10071, 10164}
