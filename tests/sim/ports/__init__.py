"""The four ports of the services, simulated: bus, store, engine and the engines' data plane."""

from tests.sim.ports.answers import Judge, expected_answer, text_of, tokens_of
from tests.sim.ports.bus import SimBus
from tests.sim.ports.engine import CARD, EngineHooks, EngineSettings, SimEngine
from tests.sim.ports.network import NO_LOSS, Loss, SimNetwork
from tests.sim.ports.plane import SimDataPlane
from tests.sim.ports.store import SimLedger, SimStore

__all__ = [
    "CARD",
    "NO_LOSS",
    "EngineHooks",
    "EngineSettings",
    "Judge",
    "Loss",
    "SimBus",
    "SimDataPlane",
    "SimEngine",
    "SimLedger",
    "SimNetwork",
    "SimStore",
    "expected_answer",
    "text_of",
    "tokens_of",
]
