"""One world: everything of one seed, wired together, run to rest and checked."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field

from tests.sim import fleet
from tests.sim.checks import Checks
from tests.sim.client import Request
from tests.sim.faults import FaultScript
from tests.sim.kernel import Deadlock, SimLoop, StepLimit, Trace, Violation
from tests.sim.kernel.logs import logs_into
from tests.sim.ports import SimDataPlane, SimLedger, SimNetwork
from tests.sim.process import Life, SimProcess
from tests.sim.scenario import RequestPlan, Scenario, draw

__all__ = ["Outcome", "World", "run_seed"]

_START_S = 1.0
_REST_S = 40.0
_RETIRE_S = 12.0
_GRAVES_S = 125.0
_LATE = 4
_STEPS = 3_000_000


@dataclass(slots=True)
class Outcome:
    """What one seed gave."""

    seed: int
    digest: str = ""
    violations: list[Violation] = field(default_factory=list)
    remarks: list[Violation] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    story: str = ""
    """The last events, readable; only with violations."""


class World:
    """The parts of one seed."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"world {scenario.seed}")
        self.loop = SimLoop(random.Random(f"order {scenario.seed}"), shuffle=scenario.shuffle)
        self.trace = Trace(self.loop)
        self.loop.on_failure = lambda text: self.trace.violate("loop", text)
        self.network = SimNetwork(self.loop, self.rng, self.trace)
        self.ledger = SimLedger(self.network, self.trace)
        self.results = SimLedger(self.network, self.trace)
        self.plane = SimDataPlane(self.loop, self.rng, self.trace)
        self.processes = {
            name: SimProcess(self, name, role) for name, role in scenario.names.items()
        }
        self.requests = [Request(plan) for plan in scenario.requests]
        self.faulted: Counter[str] = Counter()
        self.checks = Checks(self)

    def build(self, process: SimProcess, life: Life) -> fleet.Hosted:
        """Build the service of one life."""
        return fleet.build(process, life)

    async def run(self, *, graves: bool) -> None:
        """Run to rest, and check."""
        for process in self.processes.values():
            self.network.later(self.rng.random() * _START_S, process.start)
        FaultScript(self).schedule()
        for request in self.requests:
            self.loop.spawn(None, request.run(self), name="client")
        self.loop.spawn(None, self._watch(), name="watch")
        await asyncio.sleep(self.scenario.heal_s)
        until = self.loop.time() + _REST_S
        while self.loop.time() < until and not self._at_rest():
            await asyncio.sleep(0.5)
        await asyncio.sleep(_RETIRE_S)
        self.checks.final()
        if graves:
            await self._wait_for_graves()
        self.trace.closed = True
        self.loop.discard_work()

    async def _wait_for_graves(self) -> None:
        """Let all tombstones run out; a few cancels make the workers sweep them."""
        await asyncio.sleep(_GRAVES_S)
        late = [Request(RequestPlan(100 + n, 0.1, n % 2, 8, 100, 15.0, 0.3)) for n in range(_LATE)]
        await asyncio.gather(*(request.run(self) for request in late))
        await asyncio.sleep(_RETIRE_S)
        self.checks.graves(_LATE)

    def _at_rest(self) -> bool:
        if any(request.ended_s == 0.0 for request in self.requests):
            return False
        if any(not record.ended for record in self.checks.records.values()):
            return False
        for process in self.processes.values():
            service = process.life.service if process.life else None
            if service is None or not service.ready() or service.leases():
                return False
            engine = process.engine()
            if engine is not None and engine.jobs:
                return False
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.checks.watch()


def run_seed(seed: int, *, graves: bool | None = None, keep: int = 600) -> Outcome:
    """Run the world of a seed.

    Args:
        seed: which world.
        graves: also wait until tombstones must be gone; None does so for one seed in sixteen.
        keep: how many of the last events are kept for reading.
    """
    began = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()
    world = World(draw(seed))
    world.trace.last = type(world.trace.last)(maxlen=keep)
    logs_into(world.trace)
    deep = seed % 16 == 0 if graves is None else graves
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            _run(world, graves=deep)
    finally:
        if collecting:
            gc.enable()
    for warning in warned:
        world.trace.remark("warning", str(warning.message))
    return _outcome(world, time.perf_counter() - began)


def _run(world: World, *, graves: bool) -> None:
    try:
        world.loop.run(world.run(graves=graves), limit=_STEPS)
    except (Deadlock, StepLimit) as error:
        world.trace.violate(type(error).__name__, str(error))
    finally:
        world.loop.close()


def _outcome(world: World, wall_s: float) -> Outcome:
    trace = world.trace
    story = ""
    if trace.violations:
        rids = {word for v in trace.violations for word in re.findall(r"\b[0-9a-z]{26}\b", v.text)}
        story = trace.readable(rids)
    return Outcome(
        seed=world.scenario.seed,
        digest=trace.digest,
        violations=list(trace.violations),
        remarks=list(trace.remarks),
        endings=Counter(
            f"{r.ending.value}:{r.code}" if r.code else r.ending.value for r in world.requests
        ),
        states=Counter(str(record.state) for record in world.checks.records.values()),
        faults=world.faulted,
        events=Counter(trace.counts),
        steps=world.loop.steps,
        virtual_s=world.loop.time(),
        wall_s=wall_s,
        story=story,
    )
