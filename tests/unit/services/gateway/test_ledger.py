"""The end of a request is written over the record as it stands, and read only where it must be."""

from __future__ import annotations

from typing import cast

import msgspec

from libs.bus.api import Conflict, Store, StoreUnknown, Versioned
from libs.clock import SystemClock
from proto.ids import Incarnation
from proto.ledger import RequestRecord, RequestState
from services.gateway.ledger import Ending, Ledger
from tests.support.records import RID, record_of

DONE = Ending(state=RequestState.DONE)
STREAMING = record_of(RequestState.STREAMING)


class Store7:
    """One record of revision 7; the next answer to a write may be lost."""

    def __init__(self, record: RequestRecord) -> None:
        self.record, self.revision, self.reads = record, 7, 0
        self.loses_answer = False

    async def get(self, _key: str) -> Versioned[RequestRecord]:
        """Read it."""
        self.reads += 1
        return Versioned(self.record, self.revision)

    async def update(self, _key: str, value: RequestRecord, revision: int) -> int:
        """Change it."""
        if revision != self.revision:
            raise Conflict("another revision")
        self.record, self.revision = value, revision + 1
        if self.loses_answer:
            self.loses_answer = False
            raise StoreUnknown("no answer")
        return self.revision


def ledger_of(store: Store7) -> Ledger:
    """Return the ledger of the gateway that owns the record."""
    sink = STREAMING.sink
    return Ledger(store=cast("Store[RequestRecord]", store), clock=SystemClock(), sink=sink)


async def test_a_known_record_is_ended_without_a_read() -> None:
    """Its revision is that of the claim: the end is one write."""
    store = Store7(STREAMING)
    known = Versioned(STREAMING, 7)
    record = await ledger_of(store).end(RID, DONE, within_s=1, known=known)
    assert record == store.record
    assert (store.record.state, store.reads) == (RequestState.DONE, 0)


async def test_a_record_that_has_changed_is_read() -> None:
    """What somebody else has written stands, or is ended as it stands."""
    cancelled = record_of(RequestState.CANCELLED)
    moved = msgspec.structs.replace(STREAMING, attempt=3)
    theirs = msgspec.structs.replace(
        STREAMING, sink=msgspec.structs.replace(STREAMING.sink, incarnation=Incarnation("8" * 16))
    )
    for now, found in (
        (cancelled, cancelled),
        (theirs, theirs),
        (moved, msgspec.structs.replace(moved, state=RequestState.DONE)),
    ):
        store = Store7(now)
        record = await ledger_of(store).end(RID, DONE, within_s=1, known=Versioned(STREAMING, 6))
        assert record is not None
        assert msgspec.structs.replace(record, ended_ms=None) == found
        assert (store.record, store.reads) == (record, 1)


async def test_an_end_whose_answer_is_lost_is_found() -> None:
    """It was written all the same, once."""
    store = Store7(STREAMING)
    store.loses_answer = True
    record = await ledger_of(store).end(RID, DONE, within_s=1, known=Versioned(STREAMING, 7))
    assert record == store.record
    assert (store.revision, store.reads) == (8, 1)


async def test_without_a_known_record_it_is_read() -> None:
    """A claim that nobody could grant leaves no revision."""
    store = Store7(STREAMING)
    assert await ledger_of(store).end(RID, DONE, within_s=1) == store.record
    assert (store.record.state, store.reads) == (RequestState.DONE, 1)
