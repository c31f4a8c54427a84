"""Draining a worker that no supervisor here knows: all that is known of it comes over the bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from libs.bus import Endpoint, NatsBus
from libs.bus.testing import NatsServer
from libs.clock import SystemClock
from libs.fleet import Announcer
from libs.fleet.announcer import Presence
from libs.lifecycle import Tasks
from ops.cli.errors import CommandError
from ops.cli.operate.drain import drain_worker
from ops.cli.stack.record import SlotRecord, SlotState
from proto import subjects
from proto.control import Drain, Draining
from proto.ids import InstanceId, LeaseId, RequestId, new_incarnation
from proto.workers import LeaseRef, LeaseSide, Role, WorkerRef, WorkerState
from tests.support.nats import Connect

pytestmark = pytest.mark.integration

LEASE = LeaseRef(
    lease=LeaseId("l"), rid=RequestId("0" * 26), attempt=0, side=LeaseSide.DST, tokens=1, age_s=0.0
)


class Worker:
    """A worker as the bus sees it; it has one lease until it is told that the work is done."""

    def __init__(self, bus: NatsBus, name: str) -> None:
        self.instance = InstanceId(name)
        self.ref = WorkerRef(
            role=Role.DECODE,
            instance=self.instance,
            incarnation=new_incarnation(SystemClock().entropy),
        )
        self.state = WorkerState.READY
        self.leases: tuple[LeaseRef, ...] = (LEASE,)
        self.ended = asyncio.Event()
        self._bus = bus
        self._announcer = Announcer(bus=bus, clock=SystemClock(), describe=self.describe)

    def describe(self) -> Presence:
        return Presence(ref=self.ref, state=self.state, leases=self.leases)

    async def live(self) -> None:
        await self._bus.serve(
            Endpoint("drain", subjects.worker(self.ref, "drain"), Drain, self.drain)
        )
        announcing = asyncio.ensure_future(self._announcer.run())
        await self.ended.wait()
        announcing.cancel()

    async def drain(self, _ask: Drain) -> Draining:
        self.state = WorkerState.DRAINING
        self._announcer.hurry()
        return Draining(running=len(self.leases))

    def finish(self) -> None:
        """The work is done and the process ends."""
        self.leases = ()
        self.ended.set()


@asynccontextmanager
async def living(bus: NatsBus, name: str) -> AsyncGenerator[Worker]:
    """Let a worker live for the length of the context."""
    async with Tasks() as tasks:
        worker = Worker(bus, name)
        tasks.spawn(worker.live(), name="worker")
        yield worker
        worker.ended.set()


def nothing() -> SlotRecord | None:
    """There is no supervisor."""
    return None


@pytest.fixture
async def bus(own_nats: NatsServer, connect: Connect) -> NatsBus:
    """A bus of the test's own."""
    return await connect(own_nats)


async def test_a_worker_elsewhere_has_ended_when_it_is_silent(bus: NatsBus) -> None:
    """Its running count is shown until it is not heard any more."""
    said: list[str] = []
    async with living(bus, "decode-aaaaaaaa") as worker:
        draining = asyncio.ensure_future(
            drain_worker(bus, worker.instance, nothing, 10, said.append)
        )
        await asyncio.sleep(1)
        assert worker.state is WorkerState.DRAINING
        worker.finish()
        assert await draining
    assert said[:2] == ["decode-aaaaaaaa drains, 1 running", "decode-aaaaaaaa: 1 running"]
    assert said[-1].startswith("decode-aaaaaaaa: not heard for 2.5 s, it has ended after")


async def test_the_wait_has_an_end(bus: NatsBus) -> None:
    """Who drains for longer is left to it, and the command says how much is left."""
    said: list[str] = []
    async with living(bus, "decode-aaaaaaaa") as worker:
        assert not await drain_worker(bus, worker.instance, nothing, 0.5, said.append)
    assert said[-1] == "decode-aaaaaaaa still drains after 0.5 s, 1 running"


async def test_a_replaced_process_is_told(bus: NatsBus) -> None:
    """A supervisor that started another process instead is not taken for a drain."""
    slot = SlotRecord(
        name="decode-0",
        role="decode",
        instance="decode-aaaaaaaa",
        pid=7,
        health_port=1,
        state=SlotState.READY,
    )
    states = [slot, slot]
    heir = msgspec.structs.replace(slot, pid=8, state=SlotState.STARTING)

    def now() -> SlotRecord:
        return states.pop(0) if states else heir

    said: list[str] = []
    async with living(bus, "decode-aaaaaaaa") as worker:
        assert await drain_worker(bus, worker.instance, now, 5, said.append)
    assert "ended; its slot is starting" in said[-1]


async def test_who_is_not_there_is_told(bus: NatsBus) -> None:
    """An unknown name fails with the names that there are."""
    async with living(bus, "decode-aaaaaaaa"):
        with pytest.raises(CommandError, match=r"no worker 'decode-x'.*decode-aaaaaaaa"):
            await drain_worker(bus, InstanceId("decode-x"), nothing, 5, print)


async def test_a_worker_that_cannot_hear_is_told(bus: NatsBus) -> None:
    """While its engine is away nobody serves its verbs: the command says so at once."""
    worker = Worker(bus, "decode-aaaaaaaa")
    worker.state = WorkerState.LOADING
    announcer = Announcer(bus=bus, clock=SystemClock(), describe=worker.describe)
    async with Tasks() as tasks:
        tasks.spawn(announcer.run(), name="announce")
        with pytest.raises(CommandError, match="takes no orders now: loading"):
            await drain_worker(bus, worker.instance, nothing, 5, print)
