"""Cancelling one request: by its gateway, or in its place if that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from libs.bus import (
    BusDown,
    BusError,
    Conflict,
    NatsBus,
    NoResponders,
    RequestTimeout,
    StoreUnknown,
)
from libs.chronicle import Chronicle
from libs.clock import SystemClock
from ops.cli.errors import CommandError
from ops.cli.operate.ledger import find_request, ledger_of
from proto import subjects
from proto.control import Cancel, Inventory, InventoryRequest
from proto.errors import ErrorCode, PdbusError
from proto.events import EventKind
from proto.gateway import CallState, CancelCall
from proto.ids import InstanceId, RequestId
from proto.ledger import RequestRecord, RequestState
from proto.workers import LeaseSide, WorkerRef

__all__ = ["cancel_request", "sides_of"]

FREED_S = 5.0
"""How long it is waited for that both engines are proved free."""

_OWNER_S = 3.0
"""How long a gateway may take from its word to the ledger."""
_ASK_S = 1.0
_TURNS = 3
_POLL_S = 0.05
_EVENTS_S = 1.0
"""For so long only events are believed; then a worker is asked whether it ever held anything."""
_ME = InstanceId("pdbus-cli")

Say = Callable[[str], None]


async def cancel_request(bus: NatsBus, rid: RequestId, reason: str, say: Say) -> bool:
    """Cancel a request and return whether all that it held is free.

    Raises:
        CommandError: there is no such request, or it ended in another way.
    """
    record = await find_request(bus, rid)
    if record.ended:
        if record.state is not RequestState.CANCELLED:
            raise CommandError(_too_late(record))
        say(f"request {rid} was cancelled already: {record.detail}")
    else:
        record = await _end(bus, record, reason, say)
        if record.state is not RequestState.CANCELLED:
            raise CommandError(_too_late(record))
        say(f"request {rid} is cancelled: {record.detail}")
    return await _freed(bus, record, say)


def sides_of(record: RequestRecord) -> dict[LeaseSide, WorkerRef]:
    """Return who may hold KV memory for the newest attempt of a request."""
    placement = record.placement
    if placement is None:
        return {}
    sides = {LeaseSide.DST: placement.decode}
    return sides if placement.prefill is None else {LeaseSide.SRC: placement.prefill, **sides}


async def _end(bus: NatsBus, record: RequestRecord, reason: str, say: Say) -> RequestRecord:
    """Return the ended record, whoever has ended it."""
    for _ in range(_TURNS):
        owner = record.sink.gateway
        try:
            told = await _ask_owner(bus, record, reason)
        except NoResponders:
            say(f"its gateway {owner} is gone: it is ended here")
            break
        except (RequestTimeout, PdbusError) as error:
            say(f"its gateway {owner} does not answer ({error}): it is ended here")
            break
        if told.running:
            say(f"its gateway {owner} ends it")
        before = record.sink
        record = await _until_ended(bus, record, _OWNER_S if told.running else _ASK_S)
        if record.ended:
            return record
        if record.sink == before:
            say(f"its gateway {owner} has not written its end: it is ended here")
            break
    return await _end_here(bus, record.rid, reason)


async def _ask_owner(bus: NatsBus, record: RequestRecord, reason: str) -> CallState:
    sink = record.sink
    subject = subjects.gateway(sink.gateway, sink.incarnation, "cancel")
    ask = CancelCall(rid=record.rid, reason=reason)
    return await bus.request(subject, ask, CallState, timeout_s=_ASK_S)


async def _until_ended(bus: NatsBus, record: RequestRecord, within_s: float) -> RequestRecord:
    until = time.monotonic() + within_s
    while not record.ended and time.monotonic() < until:
        await asyncio.sleep(_POLL_S)
        record = await find_request(bus, record.rid)
    return record


async def _end_here(bus: NatsBus, rid: RequestId, reason: str) -> RequestRecord:
    """Write CANCELLED if nobody has ended the request, and tell all workers."""
    clock = SystemClock()
    ledger = ledger_of(bus)
    until = time.monotonic() + _OWNER_S
    while time.monotonic() < until:
        found = await ledger.get(rid)
        if found is None or found.value.ended:
            break
        ended = msgspec.structs.replace(
            found.value,
            state=RequestState.CANCELLED,
            error=ErrorCode.CANCELLED,
            detail=reason,
            ended_ms=clock.unix_ms(),
        )
        try:
            await ledger.update(rid, ended, found.revision)
        except (Conflict, StoreUnknown):
            continue
        attempt = max(0, ended.attempt)
        order = Cancel(rid=rid, attempt=ended.attempt, reason=reason)
        await bus.publish(subjects.cancel(ended.tenant, rid), order)
        Chronicle(bus=bus, clock=clock, instance=_ME).fact(
            EventKind.REQUEST_CANCELLED, rid, attempt, code=str(ErrorCode.CANCELLED), reason=reason
        )
        await bus.flush_events(_OWNER_S)
        return ended
    return await find_request(bus, rid)


async def _freed(bus: NatsBus, record: RequestRecord, say: Say) -> bool:
    """Wait until each side is proved free, and tell by what; return whether that came true."""
    open_sides = sides_of(record)
    began = time.monotonic()
    while open_sides and time.monotonic() - began < FREED_S:
        proofs = await _proofs(bus, record)
        if time.monotonic() - began > _EVENTS_S:
            proofs = {**await _absences(bus, record.rid, open_sides), **proofs}
        for side in [side for side in open_sides if side in proofs]:
            say(f"{side} {open_sides.pop(side).instance}: {proofs[side]}")
        await asyncio.sleep(_POLL_S)
    for side, owner in open_sides.items():
        say(f"{side} {owner.instance}: not proved free after {FREED_S:g} s; cleanup goes on")
    return not open_sides


async def _proofs(bus: NatsBus, record: RequestRecord) -> dict[LeaseSide, str]:
    """Return the proofs of the newest attempt that are stored and can be read now."""
    try:
        events = await bus.read_events(record.rid)
    except (BusDown, RequestTimeout):
        # The broker may be away for a moment; who waits asks again.
        return {}
    return {
        LeaseSide(str(event.data["side"])): f"freed ({event.data.get('evidence')})"
        for event in events
        if event.kind is EventKind.LEASE_FREED and event.attempt == record.attempt
    }


async def _absences(
    bus: NatsBus, rid: RequestId, sides: Mapping[LeaseSide, WorkerRef]
) -> dict[LeaseSide, str]:
    """Ask workers that may never have begun: after a cancel they cannot begin any more."""
    absent: dict[LeaseSide, str] = {}
    for side, owner in sides.items():
        subject = subjects.worker(owner, "inventory")
        try:
            inventory = await bus.request(subject, InventoryRequest(), Inventory, timeout_s=_ASK_S)
        except NoResponders:
            absent[side] = "its engine is gone, and its memory with it"
        except (BusError, PdbusError):
            continue
        else:
            if all(lease.rid != rid for lease in inventory.leases):
                absent[side] = "holds nothing"
    return absent


def _too_late(record: RequestRecord) -> str:
    cause = f" ({record.error})" if record.error else ""
    return f"request {record.rid} has ended already: {record.state}{cause}"
