from __future__ import annotations

import asyncio
import random

import pytest

from libs.bus.api import BusDown, Conflict, RequestTimeout, StoreUnknown
from proto.control import Cancel
from proto.ids import RequestId
from tests.sim.kernel import Domain, SimLoop, Trace
from tests.sim.ports import SimBus, SimLedger, SimNetwork, SimStore

RID = RequestId("r" * 26)


def _value(attempt: int) -> Cancel:
    return Cancel(rid=RID, attempt=attempt)


@pytest.fixture
def parts():
    loop = SimLoop(random.Random(7))
    trace = Trace(loop)
    network = SimNetwork(loop, random.Random(8), trace)
    ledger = SimLedger(network, trace)
    bus = SimBus(network, "one", Domain("one"))
    yield loop, network, ledger, SimStore(ledger, bus, Cancel)
    loop.close()


def test_a_stale_read_sees_the_past(parts):
    """With stale reads a reader may see what was true half a second ago, never the future."""
    loop, _, ledger, store = parts

    async def work():
        revision = await store.create("k", _value(0))
        await asyncio.sleep(1.0)
        await store.update("k", _value(1), revision)
        ledger.faults.stale_read = 1.0
        early = await store.get("k")
        await asyncio.sleep(1.0)
        return early, await store.get("k")

    early, late = loop.run(work())
    assert (early.value.attempt, late.value.attempt) == (0, 1)


def test_an_unknown_outcome_may_be_either(parts):
    """A write without an acknowledgement has happened in some cases and not in others."""
    loop, _, ledger, store = parts

    async def work():
        ledger.faults.lost_ack = 1.0
        for number in range(20):
            with pytest.raises(StoreUnknown):
                await store.create(f"k{number}", _value(number))
        return len(ledger.rows)

    assert 0 < loop.run(work()) < 20


def test_the_store_falls_with_the_bus_and_with_its_leader(parts):
    """No connection, no leader: each is its own typed failure."""
    loop, network, ledger, store = parts

    async def work():
        network.stop_server()
        with pytest.raises(BusDown):
            await store.get("k")
        with pytest.raises(BusDown):
            await store.create("k", _value(0))
        network.start_server()
        await asyncio.sleep(0.2)
        ledger.faults.away = True
        for _ in range(10):
            with pytest.raises((RequestTimeout, BusDown)):
                await store.get("k")
            with pytest.raises((StoreUnknown, BusDown)):
                await store.create("k", _value(0))
        ledger.faults.away = False
        return await store.create("k", _value(0))

    assert loop.run(work()) == 1


def test_one_of_two_writers_wins(parts):
    """Of two updates that name the same revision exactly one happens."""
    loop, _, _, store = parts

    async def work():
        revision = await store.create("k", _value(0))
        results = await asyncio.gather(
            *(store.update("k", _value(n), revision) for n in range(2)), return_exceptions=True
        )
        return sorted(type(result).__name__ for result in results)

    assert loop.run(work()) == ["Conflict", "int"]
    assert issubclass(Conflict, Exception)
