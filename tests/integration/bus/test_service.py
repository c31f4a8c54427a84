"""The service API (ADR-32), read with nats-py's own types."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest
from nats.micro.service import (
    INFO_RESPONSE_TYPE,
    PING_RESPONSE_TYPE,
    STATS_RESPONSE_TYPE,
    ServiceInfo,
    ServicePing,
    ServiceStats,
)

from libs.bus import BusSettings, NoResponders, ServiceIdentity, open_bus
from libs.clock import SystemClock
from libs.lifecycle.tasks import Tasks
from proto.control import Aborted
from proto.errors import ErrorCode, PdbusError
from proto.ids import InstanceId
from tests.integration.bus.words import ABORT, endpoint, fresh, fresh_subject

pytestmark = pytest.mark.integration


@pytest.fixture
async def served(shared_nats):
    """A service with one endpoint that has been used twice, once in vain."""
    identity = ServiceIdentity(
        fresh("decode"),
        "1.2.3",
        InstanceId(fresh("decode-")),
        {"role": "decode", "instance": "d-1"},
    )
    subject = fresh_subject()
    calls = []

    async def work(order):
        calls.append(order)
        await asyncio.sleep(0.01)
        if len(calls) == 2:
            raise PdbusError(ErrorCode.SATURATED)
        return Aborted(rid=order.rid)

    async with Tasks() as tasks:
        bus = await open_bus(BusSettings(urls=(shared_nats.url,)), SystemClock(), tasks, identity)
        await bus.serve(endpoint(subject, work, queue="router"))
        await bus.request(subject, ABORT, Aborted, timeout_s=2)
        with pytest.raises(PdbusError):
            await bus.request(subject, ABORT, Aborted, timeout_s=2)
        yield bus, identity, subject
        await bus.close()


@pytest.fixture
async def ask(shared_nats):
    """Ask a control subject as a stock tool does."""
    raw = await nats.connect(shared_nats.url)

    async def request(subject: str) -> dict:
        return json.loads((await raw.request(subject, timeout=2)).data)

    yield request
    await raw.close()


def levels(verb: str, identity: ServiceIdentity) -> list[str]:
    """Return the subjects that only this service answers."""
    return [
        f"$SRV.{verb}.{identity.service}",
        f"$SRV.{verb}.{identity.service}.{identity.instance}",
    ]


async def test_ping_names_the_process(served, ask):
    """PING says who is there, at the service's and the instance's level."""
    _, identity, _ = served
    for subject in levels("PING", identity):
        reply = await ask(subject)
        assert reply["type"] == PING_RESPONSE_TYPE
        ping = ServicePing.from_dict(reply)
        assert (ping.name, ping.id, ping.version) == (
            identity.service,
            identity.instance,
            "1.2.3",
        )
        assert ping.metadata == identity.metadata


async def test_all_services_answer_a_ping_to_all(shared_nats, connect, ask):
    """`$SRV.PING` finds every process on the bus."""
    buses = [await connect(shared_nats, service=fresh("svc")) for _ in range(3)]
    raw = await nats.connect(shared_nats.url)
    inbox = raw.new_inbox()
    replies = await raw.subscribe(inbox)
    await raw.publish("$SRV.PING", reply=inbox)
    found = set()
    wanted = {bus.link.name.split("/")[1] for bus in buses}
    while not wanted <= found:
        found.add(json.loads((await replies.next_msg(timeout=2)).data)["id"])
    await raw.close()


async def test_info_lists_the_endpoints(served, ask):
    """INFO names each endpoint with its subject and queue group."""
    _, identity, subject = served
    for control in levels("INFO", identity):
        reply = await ask(control)
        assert reply["type"] == INFO_RESPONSE_TYPE
        info = ServiceInfo.from_dict(reply)
        (only,) = info.endpoints
        assert (only.name, only.subject, only.queue_group) == ("abort", subject, "router")


async def test_stats_count_what_the_dispatcher_did(served, ask):
    """STATS counts requests, errors and the true time of handlers (nats-py: about none)."""
    _, identity, _ = served
    for control in levels("STATS", identity):
        reply = await ask(control)
        assert reply["type"] == STATS_RESPONSE_TYPE
        stats = ServiceStats.from_dict(reply)
        (only,) = stats.endpoints
        assert (only.num_requests, only.num_errors) == (2, 1)
        assert only.last_error == "saturated"
        # Two handlers slept 10 ms each; an event loop's timer may fire a little early.
        assert only.processing_time > 10_000_000
        assert only.average_processing_time == only.processing_time // 2
        assert only.data == {"inflight": 0}


async def test_a_closed_endpoint_is_listed_no_more(served, ask):
    """Endpoints come and go with engine incarnations; the answers tell the living ones."""
    bus, identity, _ = served
    more = [await bus.serve(endpoint(fresh_subject())) for _ in range(3)]
    for one in more[:2]:
        await one.close()
    info = ServiceInfo.from_dict(await ask(f"$SRV.INFO.{identity.service}"))
    assert [e.subject for e in info.endpoints][1:] == [more[2].endpoint.subject]
    assert len(info.endpoints) == 2


async def test_metadata_may_become_known_later(served, ask):
    """A model or an incarnation is added to the answers when it is there."""
    bus, identity, _ = served
    bus.describe(model="tiny", incarnation="0" * 16)
    ping = ServicePing.from_dict(await ask(f"$SRV.PING.{identity.service}"))
    assert ping.metadata == {**identity.metadata, "model": "tiny", "incarnation": "0" * 16}


async def test_a_drained_process_answers_no_more(served, ask, shared_nats, connect):
    """After the drain the service is gone from the bus."""
    bus, identity, subject = served
    assert await bus.drain(2)
    other = await connect(shared_nats)
    with pytest.raises(nats.errors.NoRespondersError):
        await ask(f"$SRV.PING.{identity.service}")
    with pytest.raises(NoResponders):
        await other.request(subject, ABORT, Aborted, timeout_s=2)
