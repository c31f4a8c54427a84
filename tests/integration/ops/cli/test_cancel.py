"""Cancelling over a real bus, with gateways and workers that behave in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from libs.bus import Endpoint, NatsBus
from libs.bus.testing import NatsServer
from libs.chronicle import Chronicle
from libs.clock import SystemClock
from ops.cli.errors import CommandError
from ops.cli.operate import cancel as cancelling
from ops.cli.operate.cancel import cancel_request
from ops.cli.operate.ledger import ledger_of, newest_requests
from proto import subjects
from proto.control import Cancel, Inventory, InventoryRequest
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.gateway import CallState, CancelCall
from proto.ids import (
    Incarnation,
    InstanceId,
    LeaseId,
    RequestId,
    Room,
    TenantHash,
    new_incarnation,
    new_request_id,
)
from proto.ledger import Mode, Placement, RequestRecord, RequestState, Sink
from proto.workers import LeaseRef, LeaseSide, Role, WorkerRef
from tests.support.nats import Connect

pytestmark = pytest.mark.integration

CLOCK = SystemClock()


def new_record(**fields: Any) -> RequestRecord:
    """Return the record of a request that streams, with names that no other test uses."""
    now = CLOCK.unix_ms()
    gateway = Sink(
        gateway=InstanceId("gateway-aaaaaaaa"), incarnation=new_incarnation(CLOCK.entropy)
    )
    decode = WorkerRef(
        role=Role.DECODE,
        instance=InstanceId("decode-bbbbbbbb"),
        incarnation=new_incarnation(CLOCK.entropy),
    )
    placement = Placement(
        attempt=0, mode=Mode.AGGREGATED, decode=decode, room=Room(1), compat="card"
    )
    values = {
        "rid": new_request_id(now, CLOCK.entropy),
        "tenant": TenantHash("0" * 16),
        "model": "tiny",
        "state": RequestState.STREAMING,
        "attempt": 0,
        "sink": gateway,
        "digest": "d",
        "deadline_ms": now + 60_000,
        "created_ms": now,
        "placement": placement,
    }
    return RequestRecord(**(values | fields))


async def serve_gateway(
    bus: NatsBus, record: RequestRecord, handler: Callable[[CancelCall], Awaitable[CallState]]
) -> None:
    """Answer the cancels of a request's gateway."""
    sink = record.sink
    subject = subjects.gateway(sink.gateway, sink.incarnation, "cancel")
    await bus.serve(Endpoint("cancel", subject, CancelCall, handler))


async def serve_worker(bus: NatsBus, record: RequestRecord, *leases: LeaseRef) -> None:
    """Answer for the inventory of a request's decode."""
    assert record.placement is not None

    async def inventory(_ask: InventoryRequest) -> Inventory:
        return Inventory(leases=leases, tombstones=0, kv_used_tokens=0)

    subject = subjects.worker(record.placement.decode, "inventory")
    await bus.serve(Endpoint("inventory", subject, InventoryRequest, inventory))


async def end(bus: NatsBus, rid: RequestId, state: RequestState, reason: str = "") -> None:
    """Write the end of a request as its gateway does."""
    ledger = ledger_of(bus)
    found = await ledger.get(rid)
    assert found is not None
    ended = msgspec.structs.replace(found.value, state=state, detail=reason)
    await ledger.update(rid, ended, found.revision)


async def run(bus: NatsBus, rid: RequestId, reason: str = "why not") -> tuple[bool, list[str]]:
    """Cancel a request; return the outcome and what was said."""
    said: list[str] = []
    return await cancel_request(bus, rid, reason, said.append), said


def freed(bus: NatsBus, record: RequestRecord) -> None:
    """Tell that decode's memory is free."""
    chronicle = Chronicle(bus=bus, clock=CLOCK, instance=InstanceId("cleanup-cccccccc"))
    facts = {"side": "dst", "evidence": "owner"}
    chronicle.fact(EventKind.LEASE_FREED, record.rid, record.attempt, **facts)


@pytest.fixture
async def bus(shared_nats: NatsServer, connect: Connect) -> NatsBus:
    """A bus for all roles of a test."""
    return await connect(shared_nats)


async def test_the_owner_writes_the_end(bus: NatsBus) -> None:
    """A gateway that obeys ends the request itself, with the operator's reason."""
    record = new_record()
    await ledger_of(bus).create(record.rid, record)

    async def obey(ask: CancelCall) -> CallState:
        await end(bus, ask.rid, RequestState.CANCELLED, ask.reason)
        freed(bus, record)
        return CallState(rid=ask.rid, running=True)

    await serve_gateway(bus, record, obey)
    assert await run(bus, record.rid) == (
        True,
        [
            "its gateway gateway-aaaaaaaa ends it",
            f"request {record.rid} is cancelled: why not",
            "dst decode-bbbbbbbb: freed (owner)",
        ],
    )


async def test_without_an_owner_the_end_is_written_here(bus: NatsBus) -> None:
    """Nobody listens for the gateway: ledger, broadcast and event come from the command."""
    record = new_record()
    await ledger_of(bus).create(record.rid, record)
    await serve_worker(bus, record)
    cancels: list[Cancel] = []
    await bus.subscribe(
        subjects.cancel(record.tenant, record.rid), Cancel, lambda _, c: cancels.append(c)
    )
    free, said = await run(bus, record.rid, "orphan")
    assert free
    assert said[0] == "its gateway gateway-aaaaaaaa is gone: it is ended here"
    assert said[-1] == "dst decode-bbbbbbbb: holds nothing"
    found = await ledger_of(bus).get(record.rid)
    assert found is not None
    assert (found.value.state, found.value.error, found.value.detail) == (
        RequestState.CANCELLED,
        ErrorCode.CANCELLED,
        "orphan",
    )
    assert cancels == [Cancel(rid=record.rid, attempt=0, reason="orphan")]
    (told,) = await bus.read_events(record.rid)
    assert (told.kind, told.data["reason"]) == (EventKind.REQUEST_CANCELLED, "orphan")


@pytest.mark.parametrize("running", [True, False])
async def test_an_owner_that_does_not_write_is_overruled(
    bus: NatsBus, running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says yes, or knows of nothing, and the record stays open: the command ends it."""
    monkeypatch.setattr(cancelling, "_OWNER_S", 0.3)
    monkeypatch.setattr(cancelling, "_ASK_S", 0.3)
    record = new_record(placement=None)
    await ledger_of(bus).create(record.rid, record)

    async def idle(ask: CancelCall) -> CallState:
        return CallState(rid=ask.rid, running=running)

    await serve_gateway(bus, record, idle)
    free, said = await run(bus, record.rid)
    assert free
    assert said[-2:] == [
        "its gateway gateway-aaaaaaaa has not written its end: it is ended here",
        f"request {record.rid} is cancelled: why not",
    ]


async def test_a_silent_owner_is_overruled(bus: NatsBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens and does not answer, as a stopped process does: the command ends it."""
    monkeypatch.setattr(cancelling, "_ASK_S", 0.2)
    record = new_record(placement=None)
    await ledger_of(bus).create(record.rid, record)

    async def stall(ask: CancelCall) -> CallState:
        await asyncio.sleep(2)
        return CallState(rid=ask.rid, running=False)

    await serve_gateway(bus, record, stall)
    free, said = await run(bus, record.rid)
    assert free
    assert "does not answer" in said[0]


async def test_a_request_that_moved_is_followed(bus: NatsBus) -> None:
    """Another gateway took it over meanwhile: that one is asked."""
    record = new_record(placement=None)
    heir = Sink(gateway=InstanceId("gateway-dddddddd"), incarnation=Incarnation("d" * 16), epoch=1)
    await ledger_of(bus).create(record.rid, record)

    async def hand_over(ask: CancelCall) -> CallState:
        found = await ledger_of(bus).get(ask.rid)
        assert found is not None
        moved = msgspec.structs.replace(found.value, sink=heir)
        await ledger_of(bus).update(ask.rid, moved, found.revision)
        return CallState(rid=ask.rid, running=False)

    async def obey(ask: CancelCall) -> CallState:
        await end(bus, ask.rid, RequestState.CANCELLED, ask.reason)
        return CallState(rid=ask.rid, running=True)

    await serve_gateway(bus, record, hand_over)
    await serve_gateway(bus, msgspec.structs.replace(record, sink=heir), obey)
    free, said = await run(bus, record.rid)
    assert free
    assert said[0] == "its gateway gateway-dddddddd ends it"


async def test_another_end_stands(bus: NatsBus) -> None:
    """The request is done before the cancel takes effect: it stays done, and that is told."""
    record = new_record()
    await ledger_of(bus).create(record.rid, record)

    async def finish(ask: CancelCall) -> CallState:
        await end(bus, ask.rid, RequestState.DONE)
        return CallState(rid=ask.rid, running=False)

    await serve_gateway(bus, record, finish)
    with pytest.raises(CommandError, match="has ended already: done"):
        await run(bus, record.rid)


async def test_memory_that_is_not_proved_free_is_told(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that still lists the lease after the wait makes the command fail, and say so."""
    monkeypatch.setattr(cancelling, "FREED_S", 1.5)
    record = new_record(state=RequestState.CANCELLED)
    await ledger_of(bus).create(record.rid, record)
    lease = LeaseRef(
        lease=LeaseId("x"), rid=record.rid, attempt=0, side=LeaseSide.DST, tokens=1, age_s=1.0
    )
    await serve_worker(bus, record, lease)
    free, said = await run(bus, record.rid)
    assert not free
    assert said[-1] == ("dst decode-bbbbbbbb: not proved free after 1.5 s; cleanup goes on")


async def test_a_dead_engine_holds_nothing(bus: NatsBus) -> None:
    """Nobody listens for the worker's incarnation any more: its memory is gone with it."""
    record = new_record(state=RequestState.CANCELLED)
    await ledger_of(bus).create(record.rid, record)
    free, said = await run(bus, record.rid)
    assert free
    assert said[-1] == "dst decode-bbbbbbbb: its engine is gone, and its memory with it"


async def test_proofs_that_cannot_be_read_now_break_nothing(
    own_nats: NatsServer, connect: Connect
) -> None:
    """Before the first event there is no stream of them: the worker is asked, and that counts."""
    bus = await connect(own_nats)
    record = new_record(state=RequestState.CANCELLED)
    await ledger_of(bus).create(record.rid, record)
    await serve_worker(bus, record)
    free, said = await run(bus, record.rid)
    assert free
    assert said[-1].endswith("holds nothing")


async def test_the_newest_requests_come_first(own_nats: NatsServer, connect: Connect) -> None:
    """States filter, the limit cuts, and a record that was changed is listed once."""
    bus = await connect(own_nats)
    ledger = ledger_of(bus)
    now = CLOCK.unix_ms()
    states = [RequestState.DONE, RequestState.FAILED, RequestState.STREAMING, RequestState.DONE]
    rids: list[RequestId] = []
    for age, state in enumerate(states):
        record = new_record(state=state, created_ms=now - age)
        rids.append(record.rid)
        await ledger.create(record.rid, record)
    await end(bus, rids[2], RequestState.CANCELLED)
    assert [r.rid for r in await newest_requests(bus, (), 10)] == rids
    done = await newest_requests(bus, (RequestState.DONE, RequestState.CANCELLED), 2)
    assert [r.rid for r in done] == [rids[0], rids[2]]
    assert await newest_requests(bus, (RequestState.ACCEPTED,), 5) == []
