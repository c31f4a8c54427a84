"""The four ports of the services, simulated: bus, store, engine and the engines' data plane."""

from tests.sim.ports.bus import SimBus
from tests.sim.ports.engine import EngineSettings, SimEngine, expected_answer
from tests.sim.ports.network import Loss, SimNetwork
from tests.sim.ports.plane import SimDataPlane
from tests.sim.ports.store import SimLedger, SimStore

__all__ = [
    "EngineSettings",
    "Loss",
    "SimBus",
    "SimDataPlane",
    "SimEngine",
    "SimLedger",
    "SimNetwork",
    "SimStore",
    "expected_answer",
]
