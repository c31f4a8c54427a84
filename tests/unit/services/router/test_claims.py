"""A claim is granted for the record as it stands, whoever has read it last."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from libs.bus.api import Conflict, Store, Versioned
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, InstanceId, RequestId, Room
from proto.ledger import Mode, Placement, RequestRecord, RequestState
from proto.router import Claim
from proto.workers import Role, WorkerRef
from services.router.claims import Claims
from tests.support.records import RID, record_of

DECODE = WorkerRef(role=Role.DECODE, instance=InstanceId("d"), incarnation=Incarnation("d" * 16))


def assigned(attempt: int) -> RequestRecord:
    """Return a record whose attempt has a place."""
    place = Placement(
        attempt=attempt, mode=Mode.AGGREGATED, decode=DECODE, room=Room("1"), compat="c"
    )
    return record_of(RequestState.ASSIGNED, attempt, placement=place)


class Ledger:
    """One record, and how often it was read."""

    def __init__(self, record: RequestRecord) -> None:
        self.record, self.revision, self.reads = record, 7, 0

    async def get(self, _key: str) -> Versioned[RequestRecord]:
        """Read it."""
        self.reads += 1
        return Versioned(self.record, self.revision)

    async def update(self, _key: str, value: RequestRecord, revision: int) -> int:
        """Change it."""
        if revision != self.revision:
            raise Conflict("another revision")
        self.record, self.revision = value, revision + 1
        return self.revision


def claims_of(ledger: Ledger) -> Claims:
    """Return the claims on a ledger."""
    return Claims(cast("Store[RequestRecord]", ledger))


async def test_a_record_that_was_just_assigned_is_not_read_again() -> None:
    """Its revision is known; the claim is one write."""
    ledger = Ledger(assigned(0))
    claims = claims_of(ledger)
    claims.expect(ledger.record, ledger.revision)
    assert (await claims.grant(Claim(rid=RID, attempt=0, worker=DECODE))).attempt == 0
    assert ledger.record.state is RequestState.STREAMING
    assert ledger.reads == 0
    await claims.grant(Claim(rid=RID, attempt=0, worker=DECODE))
    assert ledger.reads == 1


async def test_a_record_that_changed_meanwhile_is_read() -> None:
    """What was kept no longer stands: the claim of a cancelled request is refused."""
    ledger = Ledger(assigned(0))
    claims = claims_of(ledger)
    claims.expect(ledger.record, ledger.revision)
    ledger.record = msgspec.structs.replace(ledger.record, state=RequestState.CANCELLED)
    ledger.revision += 1
    with pytest.raises(PdbusError) as refusal:
        await claims.grant(Claim(rid=RID, attempt=0, worker=DECODE))
    assert refusal.value.code is ErrorCode.CANCELLED


async def test_the_revision_is_for_the_gateway_that_owns_the_request() -> None:
    """Who has lost the request must not be able to write over the record of its new owner."""
    ledger = Ledger(assigned(0))
    claims = claims_of(ledger)
    owner = ledger.record.sink.incarnation
    claim = Claim(rid=RID, attempt=0, worker=DECODE, gateway=owner)
    for _ in range(2):
        # When it is granted, and when it is granted again.
        assert (await claims.grant(claim)).revision == ledger.revision == 8
    for gateway in (Incarnation("8" * 16), None):
        claim = Claim(rid=RID, attempt=0, worker=DECODE, gateway=gateway)
        assert (await claims.grant(claim)).revision == 0


async def test_what_is_kept_of_another_attempt_says_nothing() -> None:
    """Another router has assigned the newer attempt; it is claimed at once."""
    ledger = Ledger(assigned(1))
    claims = claims_of(ledger)
    claims.expect(assigned(0), 3)
    assert (await claims.grant(Claim(rid=RID, attempt=1, worker=DECODE))).attempt == 1


async def test_few_records_are_kept() -> None:
    """Requests that are never claimed fill no memory."""
    claims = claims_of(Ledger(assigned(0)))
    for number in range(5000):
        record = msgspec.structs.replace(assigned(0), rid=RequestId(f"{number:026}"))
        claims.expect(record, number)
    assert len(claims._fresh) == 4096
