"""How slots are reserved: at once where nobody waits, and in turn where somebody does."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from libs.bus.api import Bus
from libs.clock import SystemClock
from libs.fleet import Fleet
from proto.decode import Reserve, Reserved
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, InstanceId, LeaseId, RequestId
from proto.ledger import Sink
from proto.router import Place
from proto.workers import Heartbeat, Role, WorkerLoad, WorkerState
from services.router.candidates import Pending
from services.router.holding import Held, Holding
from services.router.policies import POLICIES
from services.router.turns import Turns
from tests.unit.services.router.test_candidates import card

A, B, C = (RequestId(letter * 26) for letter in "abc")
SINK = Sink(gateway=InstanceId("gateway-00000000"), incarnation=Incarnation("9" * 16))
CLOCK = SystemClock()


class Decodes:
    """Decode workers as they answer reservations: in the order of the test."""

    def __init__(self) -> None:
        self.asked: list[tuple[RequestId, str]] = []
        """Who has asked, and which worker."""
        self.open: dict[RequestId, asyncio.Future[bool]] = {}
        """Reservations without an answer: true where there is room."""
        self.full = False
        """Refuse at once."""

    async def request(self, subject: str, message: Any, _kind: type, *, timeout_s: float) -> Any:
        """Answer a reservation when the test says so."""
        del timeout_s
        assert isinstance(message, Reserve)
        self.asked.append((message.rid, subject.split(".")[3]))
        if self.full:
            raise PdbusError(ErrorCode.SATURATED, "full")
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.open[message.rid] = answer
        if not await answer:
            raise PdbusError(ErrorCode.SATURATED, "full")
        return Reserved(lease=LeaseId("l"), write_by_ms=0)


class Desk:
    """A router's holding of slots over some decode workers, and the asks of a test."""

    def __init__(self, *slots: int) -> None:
        self.fleet, self.pending, self.turns = Fleet(), Pending(), Turns(CLOCK)
        self.decodes = Decodes()
        self.sequence = 0
        self.names = [InstanceId(f"decode-{number:08}") for number in range(len(slots))]
        self.beat(*slots)
        self.holding = Holding(
            bus=cast("Bus", self.decodes),
            clock=CLOCK,
            fleet=self.fleet,
            pending=self.pending,
            turns=self.turns,
            policy=next(iter(POLICIES.values())),
            check=self._check,
        )
        self.tasks: dict[RequestId, asyncio.Task[Held | None]] = {}

    def beat(self, *slots_free: int) -> None:
        """Let all workers be heard."""
        self.sequence += 1
        for name, free in zip(self.names, slots_free, strict=True):
            heartbeat = Heartbeat(
                role=Role.AGGREGATED,
                instance=name,
                incarnation=Incarnation(f"{int(name[-8:]):016}"),
                version="1",
                sequence=self.sequence,
                sent_ms=0,
                state=WorkerState.READY,
                card=card(),
                load=WorkerLoad(slots=4, slots_free=free),
            )
            self.fleet.hear(heartbeat, CLOCK.monotonic())
            self.pending.heard(heartbeat.incarnation)
        self.turns.wake()

    async def _check(self, _ask: Place) -> None: ...

    async def ask(self, rid: RequestId, *, priority: int = 0, within_s: float = 5.0) -> None:
        """Begin to reserve for a request."""
        now_ms = CLOCK.unix_ms()
        place = Place(
            rid=rid,
            attempt=0,
            model="m",
            prompt_tokens=10,
            max_tokens=10,
            sink=SINK,
            deadline_ms=now_ms + 10_000,
            not_after_ms=now_ms + int(within_s * 1000),
            priority=priority,
        )
        self.tasks[rid] = asyncio.ensure_future(self.holding.hold(place))
        await self.turn()

    async def answer(self, rid: RequestId, *, room: bool) -> None:
        """Answer the reservation of a request."""
        self.decodes.open.pop(rid).set_result(room)
        await self.turn()

    async def turn(self) -> None:
        """Let everybody act."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def held(self, rid: RequestId) -> Held | None:
        """Return what a request has got."""
        async with asyncio.timeout(5):
            return await self.tasks[rid]

    @property
    def asking(self) -> list[RequestId]:
        """The requests that have asked a worker, in order."""
        return [rid for rid, _ in self.decodes.asked]


async def test_where_slots_are_free_nobody_waits_for_others() -> None:
    """Three reserve at once, and each counts for the next: no worker gets what another can do."""
    desk = Desk(4, 4)
    for rid in (A, B, C):
        await desk.ask(rid)
    assert desk.asking == [A, B, C]
    first, second, third = (worker for _, worker in desk.decodes.asked)
    assert first != second
    assert first == third
    assert len(desk.turns) == 0
    for rid in (C, A, B):
        await desk.answer(rid, room=True)
    for rid in (A, B, C):
        held = await desk.held(rid)
        assert held is not None
        assert (held.tried, held.waited_s) == (2, 0.0)


async def test_who_comes_when_no_slot_is_left_waits_for_those_before() -> None:
    """The last slot is being reserved; whoever comes asks nobody until that is settled."""
    desk = Desk(1)
    await desk.ask(A)
    await desk.ask(B)
    assert desk.asking == [A]
    await desk.answer(A, room=True)
    # A slot may have become free since: the worker knows.
    assert desk.asking == [A, B]
    await desk.answer(B, room=True)
    assert await desk.held(A) is not None
    assert await desk.held(B) is not None


async def test_who_was_refused_is_in_front_of_who_came_later() -> None:
    """It takes the turn that it would have had from the beginning."""
    desk = Desk(1)
    await desk.ask(A)
    await desk.ask(B)
    await desk.answer(A, room=False)
    assert desk.asking == [A, A]
    await desk.answer(A, room=False)
    desk.beat(1)
    await desk.turn()
    assert desk.asking == [A, A, A]
    await desk.answer(A, room=True)
    assert desk.asking[-1] == B
    await desk.answer(B, room=True)
    held = await desk.held(A)
    assert held is not None
    assert held.waited_s > 0


async def test_a_higher_priority_goes_before_who_was_refused() -> None:
    """What a request is given without a turn, it is given no second time before others."""
    desk = Desk(1)
    await desk.ask(A)
    await desk.ask(B, priority=10)
    await desk.answer(A, room=False)
    assert desk.asking == [A, B]
    await desk.answer(B, room=True)
    assert desk.asking == [A, B, A]
    await desk.answer(A, room=True)
    assert await desk.held(A) is not None


async def test_while_somebody_waits_everybody_takes_a_turn() -> None:
    """A slot that becomes free is for who waits, and not for who comes in that moment."""
    desk = Desk(0)
    await desk.ask(A)
    await desk.answer(A, room=False)
    desk.beat(1)
    await desk.ask(B)
    assert desk.asking == [A, A]
    await desk.answer(A, room=True)
    assert desk.asking == [A, A, B]
    await desk.answer(B, room=True)
    assert await desk.held(B) is not None


async def test_a_cancel_is_heard_while_a_slot_is_reserved() -> None:
    """Should there be no room after all, it waits no more."""
    desk = Desk(1)
    await desk.ask(A)
    desk.holding.cancel(A, 0)
    await desk.answer(A, room=False)
    with pytest.raises(PdbusError) as refusal:
        await desk.held(A)
    assert refusal.value.code is ErrorCode.CANCELLED
    assert len(desk.turns) == 0


async def test_a_turn_that_is_kept_is_not_given_up() -> None:
    """Between two slices nobody is there; who comes back goes on where it was."""
    desk = Desk(0)
    desk.decodes.full = True
    await desk.ask(A, within_s=0.05)
    assert await desk.held(A) is None
    desk.decodes.full = False
    desk.beat(1)
    await desk.ask(A)
    await desk.answer(A, room=True)
    held = await desk.held(A)
    assert held is not None
    assert held.waited_s > 0.04
    assert not desk.turns.keeps(A)


async def test_what_was_counted_for_a_refusal_is_taken_back() -> None:
    """The next ask sees the worker as it is."""
    desk = Desk(2)
    desk.decodes.full = True
    await desk.ask(A, within_s=0.05)
    assert desk.asking[:2] == [A, A]
    assert await desk.held(A) is None
    assert desk.pending.attempts(Incarnation("0" * 16)) == 0
