"""Which records cleanup marks as clean, and when it reads them."""

from __future__ import annotations

from typing import cast

import msgspec

from libs.bus.api import Bus, Store
from libs.chronicle import Chronicle
from libs.fleet import Fleet
from proto.ids import Incarnation, InstanceId, LeaseId, Room, lease_id
from proto.ledger import Cleaned, Mode, Placement, RequestRecord, RequestState
from proto.workers import LeaseSide, Role, WorkerRef
from services.cleanup.endings import Endings
from tests.support.records import RID, record_of
from tests.unit.services.cleanup.ledger import HandClock, MemoryLedger

NOTHING, CLEAN = Cleaned(), Cleaned(src=True, dst=True)
WORKERS = {
    LeaseSide.SRC: WorkerRef(
        role=Role.PREFILL, instance=InstanceId("prefill-0000000"), incarnation=Incarnation("1" * 16)
    ),
    LeaseSide.DST: WorkerRef(
        role=Role.DECODE, instance=InstanceId("decode-00000000"), incarnation=Incarnation("2" * 16)
    ),
}
SRC, DST = (lease_id(ref.incarnation, RID, 0, side) for side, ref in WORKERS.items())


def record(state: RequestState, cleaned: Cleaned = NOTHING) -> RequestRecord:
    placement = Placement(
        attempt=0,
        mode=Mode.DISAGGREGATED,
        decode=WORKERS[LeaseSide.DST],
        prefill=WORKERS[LeaseSide.SRC],
        room=Room("1"),
        compat="c",
    )
    return record_of(state, placement=placement, cleaned=cleaned)


class Desk:
    """Endings on a ledger in memory."""

    def __init__(self, first: RequestRecord) -> None:
        self.ledger, self.clock = MemoryLedger(), HandClock()
        self.ledger.put(first)
        bus = cast("Bus", None)
        self.endings = Endings(
            bus=bus,
            store=cast("Store[RequestRecord]", self.ledger),
            clock=self.clock,
            fleet=Fleet(),
            chronicle=Chronicle(bus=bus, clock=self.clock, instance=InstanceId("cleanup-0000000")),
        )

    @property
    def record(self) -> RequestRecord:
        """The record as it stands."""
        return self.ledger.rows[RID].value

    async def settle(self, seen: int = 0) -> None:
        """A second passes."""
        self.clock.now_s += 1
        await self.endings.settle(seen)

    def free(self, *leases: LeaseId, soon: bool = False) -> None:
        """Prove leases free."""
        for lease in leases:
            self.endings.freed(RID, lease, soon=soon)


async def test_an_ordinary_end_reads_nothing() -> None:
    """Its gateway has heard the same from both workers, and has written it with the end."""
    desk = Desk(record(RequestState.DONE, CLEAN))
    desk.free(SRC, DST)
    await desk.settle()
    await desk.endings.consider(desk.record)
    await desk.settle()
    assert (desk.ledger.reads, desk.ledger.last) == (0, 1)
    assert all(desk.endings.told(desk.record, side) for side in LeaseSide)


async def test_what_the_gateway_has_not_heard_is_written_when_it_is_seen() -> None:
    """A record that is clean in part is found by looking through the ledger."""
    desk = Desk(record(RequestState.DONE, Cleaned(dst=True)))
    desk.free(SRC, DST)
    await desk.endings.consider(desk.record)
    await desk.settle()
    assert desk.record == record(RequestState.DONE, CLEAN)


async def test_a_lease_that_ended_before_its_time_is_written_soon() -> None:
    """Nobody else writes it; while its end is on its way, it is asked for a while."""
    desk = Desk(record(RequestState.STREAMING))
    desk.free(SRC)
    desk.free(DST, soon=True)
    await desk.settle()
    assert desk.record.cleaned == NOTHING
    desk.ledger.put(record(RequestState.CANCELLED))
    await desk.settle()
    assert desk.record == record(RequestState.CANCELLED, CLEAN)
    reads = desk.ledger.reads
    await desk.settle()
    assert desk.ledger.reads == reads


async def test_a_request_that_runs_on_is_not_asked_for_ever() -> None:
    """An earlier attempt has ended early; the end of the request is seen when it comes."""
    desk = Desk(record(RequestState.STREAMING))
    desk.free(DST, soon=True)
    for _ in range(5):
        await desk.settle()
    reads = desk.ledger.reads
    await desk.settle()
    assert desk.ledger.reads == reads
    desk.ledger.put(record(RequestState.FAILED))
    await desk.endings.consider(desk.record)
    await desk.settle()
    assert desk.record.cleaned == Cleaned(dst=True)


async def test_a_proof_that_comes_after_all_was_over_is_forgotten() -> None:
    """A second copy of the owner's word is kept for a moment, and then looked after once."""
    desk = Desk(record(RequestState.DONE, CLEAN))
    desk.free(SRC, DST)
    desk.endings.over(RID)
    desk.free(SRC)
    desk.endings.ask_of_lost(())
    await desk.settle(seen=1)
    assert desk.ledger.reads == 0
    desk.clock.now_s += 10
    desk.endings.ask_of_lost({RID})
    await desk.settle(seen=1)
    assert desk.ledger.reads == 0
    desk.endings.ask_of_lost(())
    await desk.settle(seen=1)
    assert (desk.ledger.reads, len(desk.endings._freed)) == (1, 0)


async def test_a_write_that_lost_is_made_again() -> None:
    """Somebody else has changed the record between the read and the write."""
    desk = Desk(record(RequestState.DONE))
    desk.free(SRC, DST, soon=True)
    update, lost = desk.ledger.update, []

    async def lose_once(key: str, value: RequestRecord, revision: int) -> int:
        if not lost:
            lost.append(desk.ledger.put(msgspec.structs.replace(desk.record, detail="changed")))
        return await update(key, value, revision)

    desk.ledger.update = lose_once
    await desk.settle()
    assert desk.record.cleaned == NOTHING
    await desk.settle()
    assert (desk.record.cleaned, desk.record.detail) == (CLEAN, "changed")
