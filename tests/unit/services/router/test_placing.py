"""What a cancel does to a request that has a turn, and what becomes of a stale ask."""

from typing import Any, cast

import pytest

from libs.bus.api import Bus, Conflict, Store, Versioned
from libs.clock import SystemClock
from libs.fleet import Fleet
from proto.control import Abort, Aborted
from proto.decode import Reserve, Reserved
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, InstanceId, LeaseId, RequestId
from proto.ledger import RequestRecord, RequestState, Sink
from proto.router import Place
from proto.workers import Heartbeat, Role, WorkerLoad, WorkerState
from services.router.candidates import Pending
from services.router.placing import Placing
from services.router.policies import POLICIES
from services.router.turns import Turns
from tests.support.records import record_of
from tests.unit.services.router.test_candidates import card

A, B = RequestId("a" * 26), RequestId("b" * 26)


def test_a_cancel_between_two_slices_gives_the_turn_up() -> None:
    """Who left while nobody waited here for it takes no room of the queue any more."""
    clock = SystemClock()
    turns = Turns(clock)
    placing = Placing(
        bus=cast(Bus, None),
        store=cast("Store[RequestRecord]", None),
        clock=clock,
        fleet=Fleet(),
        pending=Pending(),
        turns=turns,
        policy=next(iter(POLICIES.values())),
    )
    turns.enter(A)
    turns.leave(A, for_good=False)
    turns.enter(B)
    assert turns.ahead(B) == 1
    placing.cancel(A, attempt=0)
    assert turns.ahead(B) == 0


SINK = Sink(gateway=InstanceId("gateway-00000000"), incarnation=Incarnation("9" * 16))


def record(attempt: int) -> RequestRecord:
    return record_of(RequestState.ACCEPTED, attempt, rid=A, sink=SINK)


class Ledger:
    """A ledger in which the request has a newer attempt already."""

    async def get(self, _key: str) -> Versioned[RequestRecord]:
        return Versioned(record(attempt=1), 9)

    async def update(self, _key: str, _value: RequestRecord, revision: int) -> int:
        if revision != 9:
            raise Conflict("another revision")
        raise AssertionError("a stale ask was written")


class Decode:
    """A decode that reserves whatever it is asked for, and remembers."""

    def __init__(self) -> None:
        self.asked: list[type] = []

    async def request(self, _subject: str, message: Any, _kind: type, *, timeout_s: float) -> Any:
        del timeout_s
        self.asked.append(type(message))
        if isinstance(message, Abort):
            return Aborted(rid=message.rid)
        return Reserved(lease=LeaseId("l"), write_by_ms=0)


@pytest.mark.parametrize("carried", [True, False])
async def test_a_stale_ask_is_refused(*, carried: bool) -> None:
    """An ask that comes after a newer attempt writes nothing, and what it reserved is given back.

    The record that it carries is as old as itself: only the compare-and-set tells.
    """
    clock, fleet, decode = SystemClock(), Fleet(), Decode()
    beat = Heartbeat(
        role=Role.AGGREGATED,
        instance=InstanceId("decode-00000000"),
        incarnation=Incarnation("d" * 16),
        version="1",
        sequence=1,
        sent_ms=0,
        state=WorkerState.READY,
        card=card(),
        load=WorkerLoad(slots=4, slots_free=4),
    )
    fleet.hear(beat, clock.monotonic())
    placing = Placing(
        bus=cast(Bus, decode),
        store=cast("Store[RequestRecord]", Ledger()),
        clock=clock,
        fleet=fleet,
        pending=Pending(),
        turns=Turns(clock),
        policy=next(iter(POLICIES.values())),
    )
    ask = Place(
        rid=A,
        attempt=0,
        model="m",
        prompt_tokens=10,
        max_tokens=10,
        sink=SINK,
        deadline_ms=clock.unix_ms() + 1000,
        not_after_ms=clock.unix_ms() + 500,
        record=record(attempt=-1) if carried else None,
        revision=3 if carried else 0,
    )
    with pytest.raises(PdbusError) as refused:
        await placing.place(ask)
    assert refused.value.code is ErrorCode.STALE_ATTEMPT
    assert decode.asked == ([Reserve, Abort] if carried else [])
