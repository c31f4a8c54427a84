"""What cleanup reads of the ledger, and what it keeps of it."""

from __future__ import annotations

from typing import cast

import pytest

from libs.bus.api import RequestTimeout, Store
from proto.ids import RequestId
from proto.ledger import Cleaned, RequestRecord, RequestState
from services.cleanup.unfinished import Unfinished
from tests.support.records import record_of
from tests.unit.services.cleanup.ledger import HandClock, MemoryLedger

A, B, C = (RequestId(letter * 26) for letter in "abc")
CLEAN = Cleaned(src=True, dst=True)


def running(rid: RequestId) -> RequestRecord:
    return record_of(RequestState.STREAMING, rid=rid)


def done(rid: RequestId, clock: HandClock, cleaned: Cleaned = CLEAN) -> RequestRecord:
    return record_of(RequestState.DONE, rid=rid, ended_ms=clock.unix_ms(), cleaned=cleaned)


class Watch:
    """What is not over, with its ledger and clock; `told` holds whose proofs have been told."""

    def __init__(self) -> None:
        self.ledger, self.clock = MemoryLedger(), HandClock()
        self.told: set[RequestId] = set()
        self.over: list[RequestId] = []
        self.unfinished = Unfinished(
            store=cast("Store[RequestRecord]", self.ledger),
            clock=self.clock,
            told=lambda record: record.rid in self.told,
            over=self.over.append,
        )

    async def look(self) -> list[RequestId]:
        """Look, and return what is shown of the ledger."""
        self.ledger.shown.clear()
        self.clock.now_s += 5
        await self.unfinished.look()
        return list(self.ledger.shown)

    @property
    def kept(self) -> set[RequestId]:
        """The requests that are not over."""
        return {record.rid for record in self.unfinished}


async def test_only_what_has_changed_is_read_again() -> None:
    """A request that runs on is read once, and kept."""
    watch = Watch()
    for rid in (A, B):
        watch.ledger.put(running(rid))
    assert await watch.look() == [A, B]
    assert await watch.look() == []
    watch.ledger.put(running(A))
    watch.ledger.put(running(C))
    assert await watch.look() == [A, C]
    assert watch.kept == {A, B, C}
    assert A in watch.unfinished
    assert watch.unfinished.since == watch.ledger.last


async def test_what_is_clean_and_told_is_forgotten() -> None:
    """Until its proofs are told, a clean request is kept: they may have to come from here."""
    watch = Watch()
    for rid in (A, B, C):
        watch.ledger.put(running(rid))
    await watch.look()
    watch.told = {A, C}
    watch.ledger.put(done(A, watch.clock))
    watch.ledger.put(done(B, watch.clock))
    watch.ledger.put(done(C, watch.clock, Cleaned(src=True)))
    await watch.look()
    assert (watch.kept, watch.over) == ({B, C}, [A])
    watch.told.add(B)
    assert await watch.look() == []
    assert (watch.kept, watch.over) == ({C}, [A, B])


async def test_what_was_clean_long_ago_is_not_told_of() -> None:
    """A cleanup that starts finds an hour of finished requests, and keeps none of them."""
    watch = Watch()
    watch.ledger.put(done(A, watch.clock))
    watch.clock.now_s += 60
    await watch.look()
    assert (watch.kept, watch.over) == (set(), [A])


async def test_a_look_that_broke_off_is_made_again() -> None:
    """What was not shown is shown the next time; what was known is still known."""
    watch = Watch()
    watch.ledger.put(running(A))
    await watch.look()
    watch.ledger.put(running(B))
    watch.ledger.put(running(C))
    watch.ledger.breaks_after = 1
    with pytest.raises(RequestTimeout):
        await watch.look()
    assert watch.kept == {A}
    watch.ledger.breaks_after = None
    assert await watch.look() == [B, C]
    assert watch.kept == {A, B, C}


async def test_once_a_minute_everything_is_read() -> None:
    """A ledger that was made anew counts from one again, and records expire."""
    watch = Watch()
    for _ in range(9):
        watch.ledger.put(running(A))
    await watch.look()
    watch.ledger.rows.clear()
    watch.ledger.last = 0
    watch.ledger.put(running(B))
    assert await watch.look() == []
    watch.clock.now_s += 60
    assert await watch.look() == [B]
    assert (watch.kept, watch.unfinished.since) == ({B}, 1)
