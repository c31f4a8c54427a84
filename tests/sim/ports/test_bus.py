from __future__ import annotations

import asyncio
import random

import pytest

from libs.bus.api import BusDown, Endpoint, NoResponders, RequestTimeout
from proto.control import Abort, Aborted, Cancel
from proto.errors import ErrorCode, PdbusError
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId
from tests.sim.kernel import Domain, SimLoop, Trace
from tests.sim.ports import Loss, SimBus, SimNetwork
from tests.sim.ports.network import matches

RID = RequestId("r" * 26)


class Wire:
    """A network with two processes."""

    def __init__(self) -> None:
        self.loop = SimLoop(random.Random(7))
        self.trace = Trace(self.loop)
        self.network = SimNetwork(self.loop, random.Random(8), self.trace)
        self.domains = {name: Domain(name) for name in ("one", "two")}
        self.one, self.two = (
            SimBus(self.network, name, domain) for name, domain in self.domains.items()
        )

    async def echo(self, queue: str | None = None, bus: SimBus | None = None) -> list[int]:
        """Serve an echo; return the attempts that it has seen."""
        seen: list[int] = []

        async def handle(message: Abort) -> Aborted:
            seen.append(message.attempt)
            return Aborted(rid=message.rid)

        await (bus or self.two).serve(Endpoint("echo", "pdbus.v1.t.echo", Abort, handle, queue))
        return seen

    async def ask(self, attempt: int = 0, timeout_s: float = 1.0) -> Aborted:
        """Ask the echo."""
        message = Abort(rid=RID, attempt=attempt)
        return await self.one.request("pdbus.v1.t.echo", message, Aborted, timeout_s=timeout_s)

    def run(self, work):
        """Run a test body."""
        try:
            return self.loop.run(work)
        finally:
            self.loop.close()


@pytest.fixture
def wire():
    return Wire()


def test_order_is_kept_between_two_processes(wire):
    """Messages of one sender arrive in the order in which they were sent."""
    got: list[int] = []

    async def work():
        await wire.two.subscribe("pdbus.v1.x.*", Cancel, lambda _s, m: got.append(m.attempt))
        for number in range(50):
            await wire.one.publish("pdbus.v1.x.y", Cancel(rid=RID, attempt=number))
        await asyncio.sleep(1.0)

    wire.run(work())
    assert got == list(range(50))


def test_a_stale_message_arrives_late_and_out_of_order(wire):
    """The stale fault delays single messages by seconds without holding up the others."""
    got: list[tuple[int, float]] = []

    async def work():
        def hear(_subject, message):
            got.append((message.attempt, wire.loop.time()))

        await wire.two.subscribe("pdbus.v1.x.*", Cancel, hear)
        wire.network.loss = Loss(stale=1.0, stale_s=(3.0, 3.0))
        await wire.one.publish("pdbus.v1.x.y", Cancel(rid=RID, attempt=0))
        wire.network.loss = Loss()
        await wire.one.publish("pdbus.v1.x.y", Cancel(rid=RID, attempt=1))
        await asyncio.sleep(5.0)

    wire.run(work())
    assert [attempt for attempt, _ in got] == [1, 0]
    assert got[1][1] - got[0][1] > 2.0


def test_drop_and_duplicate(wire):
    """The drop fault loses messages, the duplicate fault repeats them."""
    got: list[int] = []

    async def work():
        await wire.two.subscribe("pdbus.v1.x.*", Cancel, lambda _s, m: got.append(m.attempt))
        wire.network.loss = Loss(drop=1.0)
        await wire.one.publish("pdbus.v1.x.y", Cancel(rid=RID, attempt=0))
        wire.network.loss = Loss(duplicate=1.0)
        await wire.one.publish("pdbus.v1.x.y", Cancel(rid=RID, attempt=1))
        await asyncio.sleep(5.0)

    wire.run(work())
    assert got == [1, 1]


def test_a_cut_process_first_loses_silently_then_knows(wire):
    """Requests of a cut process time out until it notices, then fail at once, until it heals."""

    async def work():
        seen = await wire.echo()
        wire.network.cut(wire.one.link, notice_s=2.0, server_s=1.0)
        assert wire.one.connected
        with pytest.raises(RequestTimeout):
            await wire.ask(1, timeout_s=1.0)
        await asyncio.sleep(2.0)
        assert not wire.one.connected
        assert wire.one.down_s > 0.5
        with pytest.raises(BusDown):
            await wire.ask(2)
        wire.network.mend(wire.one.link)
        await asyncio.sleep(1.0)
        await wire.ask(3)
        return seen

    assert wire.run(work()) == [3]


def test_a_short_cut_that_nobody_notices_delays(wire):
    """What was in socket buffers during a short cut arrives when it ends."""

    async def work():
        seen = await wire.echo()
        wire.network.cut(wire.one.link, notice_s=5.0, server_s=5.0, hold=True)
        wire.network.later(0.5, wire.network.mend, wire.one.link)
        began = wire.loop.time()
        await wire.ask(1, timeout_s=2.0)
        return seen, wire.loop.time() - began

    seen, took = wire.run(work())
    assert seen == [1]
    assert took > 0.5


def test_an_outage_hits_everyone_and_ends(wire):
    """While the server is away all sends fail; each process reconnects in its own time."""

    async def work():
        seen = await wire.echo()
        wire.network.stop_server()
        with pytest.raises(BusDown):
            await wire.ask(1)
        with pytest.raises(BusDown):
            await wire.one.publish("pdbus.v1.x.y", Cancel(rid=RID, attempt=0))
        wire.network.start_server()
        await asyncio.sleep(0.2)
        await wire.ask(2)
        return seen

    assert wire.run(work()) == [2]


def test_a_dead_process_does_not_answer(wire):
    """A crashed process is nobody at once; one that vanished is silent until the server notices."""

    async def work():
        await wire.echo()
        wire.loop.kill(wire.domains["two"])
        wire.network.leave(wire.two.link, linger_s=3.0)
        with pytest.raises(RequestTimeout):
            await wire.ask(timeout_s=1.0)
        await asyncio.sleep(3.0)
        with pytest.raises(NoResponders):
            await wire.ask()

    wire.run(work())


def test_an_answer_of_a_crashed_handler_is_never_sent(wire):
    """A process that dies in the middle of a handler does not reply."""

    async def work():
        async def handle(_message: Abort) -> Aborted:
            await asyncio.sleep(0.5)
            return Aborted(rid=RID)

        await wire.two.serve(Endpoint("echo", "pdbus.v1.t.echo", Abort, handle))
        wire.network.later(0.2, wire.loop.kill, wire.domains["two"])
        with pytest.raises(RequestTimeout):
            await wire.ask(timeout_s=2.0)

    wire.run(work())


def test_too_many_handlers_are_refused(wire):
    """More requests than an endpoint runs at once are refused as saturated."""

    async def work():
        async def handle(_message: Abort) -> Aborted:
            await asyncio.sleep(1.0)
            return Aborted(rid=RID)

        await wire.two.serve(Endpoint("echo", "pdbus.v1.t.echo", Abort, handle, concurrency=1))
        first = asyncio.ensure_future(wire.ask(1, 3.0))
        await asyncio.sleep(0.1)
        with pytest.raises(PdbusError) as refusal:
            await wire.ask(2)
        assert refusal.value.code is ErrorCode.SATURATED
        await first

    wire.run(work())


def test_events_wait_for_the_bus_and_are_kept_once(wire):
    """An event said during an outage is kept after it; the same fact twice is one event."""
    event = Event(
        kind=EventKind.ENGINE_READY,
        rid=None,
        attempt=0,
        instance=InstanceId("i"),
        at_ms=1.0,
        start_ms=1.0,
    )

    async def work():
        wire.network.stop_server()
        wire.one.emit(event)
        wire.one.emit(event)
        await asyncio.sleep(1.0)
        assert wire.network.events == []
        wire.network.start_server()
        await asyncio.sleep(1.0)

    wire.run(work())
    assert wire.network.events == [event]


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.b.c", "a.b", False),
        ("*.b", "a.b", True),
    ],
)
def test_patterns(pattern, subject, fits):
    """Patterns match as in NATS."""
    assert matches(pattern, subject) is fits
