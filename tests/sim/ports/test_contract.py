from __future__ import annotations

import itertools
import random

import pytest

from libs.bus import BucketSpec
from proto.control import Abort
from tests.sim.kernel import Domain, SimLoop, Trace
from tests.sim.ports import SimBus, SimLedger, SimNetwork, SimStore
from tests.sim.ports.contract import PROMISES, Ports
from tests.support.nats import connect, shared_nats

__all__ = ["connect", "shared_nats"]

_numbers = itertools.count()


def _name(promise) -> str:
    return promise.__name__


@pytest.mark.sim
@pytest.mark.parametrize("promise", PROMISES, ids=_name)
@pytest.mark.parametrize("seed", range(3))
def test_the_simulated_bus_keeps(promise, seed):
    """What the ports promise is true of the simulated bus and store, in any order of events."""
    loop = SimLoop(random.Random(seed))
    trace = Trace(loop)
    network = SimNetwork(loop, random.Random(seed + 100), trace)
    one, two = (SimBus(network, name, Domain(name)) for name in ("one", "two"))
    ports = Ports(one, two, SimStore(SimLedger(network, trace), one, Abort), "fresh")
    try:
        loop.run(promise(ports))
    finally:
        loop.close()


@pytest.mark.integration
@pytest.mark.parametrize("promise", PROMISES, ids=_name)
async def test_the_real_bus_keeps(promise, connect, shared_nats):
    """What the ports promise is true of NATS too, so that the simulation stands for it."""
    one, two = await connect(shared_nats), await connect(shared_nats)
    fresh = f"c{next(_numbers)}"
    store = one.store(BucketSpec(name=f"CONTRACT_{fresh}"), Abort)
    await promise(Ports(one, two, store, fresh))
