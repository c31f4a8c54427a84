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

from proto.ids import Incarnation
from proto.workers import CompatCard
from tests.sim import fleet
from tests.sim.checks import Checks
from tests.sim.client import Ask, Ending
from tests.sim.faults import FaultScript
from tests.sim.kernel import Deadlock, SimLoop, StepLimit, Trace, Violation
from tests.sim.kernel.logs import logs_into
from tests.sim.matrix import Matrix
from tests.sim.operators import Operator
from tests.sim.ports import SimDataPlane, SimLedger, SimNetwork
from tests.sim.process import Life, SimProcess
from tests.sim.progress import Progress
from tests.sim.scenario import AskPlan, Body, Scenario, draw
from tests.sim.scenario.cells import Cell

__all__ = ["Outcome", "World", "run_seed"]

_START_S = 1.0
_REST_S = 40.0
_RETIRE_S = 11.5
"""Attempts are kept for ten seconds after their end."""
_CLEAN_S = 30.0
_GRAVES_S = 125.0
_LATE = 4
_STEPS = 3_000_000
_WARM_UP = 8
"""Tokens of the prompt with which a gateway warms up."""
_PARTING = frozenset({"crash", "cut", "outage", "pause", "store", "drain", "loss"})
"""Faults that can part a gateway from the ledger, or from its story."""


@dataclass(slots=True)
class Outcome:
    """What one seed gave."""

    seed: int
    digest: str = ""
    shape: str = ""
    violations: list[Violation] = field(default_factory=list)
    remarks: list[Violation] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)
    """Further figures: requests, attempts, migrations, tokens, ..."""
    hits: Counter[Cell] = field(default_factory=Counter)
    steps: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
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
        self.names: dict[Incarnation, str] = {}
        """Which process each incarnation belongs to."""
        self.cards: dict[Incarnation, CompatCard] = {}
        self.processes = {
            name: SimProcess(self, name, role) for name, role in scenario.names.items()
        }
        self.asks = [Ask(plan, scenario.seed) for plan in scenario.asks]
        self.faulted: Counter[str] = Counter()
        self.progress = Progress()
        self.operator = Operator(self)
        self.matrix = Matrix(self)
        self.checks = Checks(self)
        self._told: set[str] = set()

    def build(self, process: SimProcess, life: Life) -> fleet.Hosted:
        """Build the service of one life."""
        return fleet.build(process, life)

    def pick(self, role: str) -> str:
        """Return a process of a role."""
        return self.rng.choice([n for n, r in self.scenario.names.items() if r == role])

    def pairs(self) -> bool:
        """Return whether two workers fit together now, or one needs no other."""
        cards = {
            role: [p.card for p in self.processes.values() if p.role == role]
            for role in ("prefill", "decode", "aggregated")
        }
        return bool(cards["aggregated"]) or any(c in cards["decode"] for c in cards["prefill"])

    # What checks say

    def once(self, name: str, text: str) -> None:
        """Record a broken promise, and the same one only once."""
        if text not in self._told:
            self._told.add(text)
            self.trace.violate(name, text)

    def remark_once(self, name: str, text: str) -> None:
        """Record what falls short, and the same only once."""
        if text not in self._told:
            self._told.add(text)
            self.trace.remark(name, text)

    def unless_parted(self, name: str, text: str) -> None:
        """Record a broken promise; only a remark where a gateway can have been parted."""
        if _PARTING & {fault.kind for fault in self.scenario.faults}:
            self.trace.remark(name, text)
        else:
            self.trace.violate(name, text)

    # A run

    async def run(self, *, graves: bool) -> None:
        """Run to rest, and check."""
        for process in self.processes.values():
            self.network.later(self.rng.random() * _START_S, process.start)
        FaultScript(self).schedule()
        for ask in self.asks:
            self.loop.spawn(None, ask.run(self), name="client")
        self.loop.spawn(None, self._watch(), name="watch")
        await self._come_to_rest()
        self.checks.final()
        if graves:
            await self._wait_for_graves()
        self.trace.closed = True
        self.loop.discard_work()

    async def _come_to_rest(self) -> None:
        await asyncio.sleep(self.scenario.heal_s)
        until = self.loop.time() + _REST_S
        while self.loop.time() < until and not self._at_rest():
            await asyncio.sleep(0.5)
        await asyncio.sleep(_RETIRE_S)
        until = self.loop.time() + _CLEAN_S
        while self.loop.time() < until and not self._clean():
            await asyncio.sleep(0.5)

    async def _wait_for_graves(self) -> None:
        """Let all tombstones run out; a few cancels make the workers sweep them."""
        await asyncio.sleep(_GRAVES_S)
        body = Body(900, 8, 100, no_stop=True)
        plans = [AskPlan(900 + n, 0.1, n % 2, body, 15.0, leave_after_s=0.3) for n in range(_LATE)]
        late = [Ask(plan, self.scenario.seed) for plan in plans]
        await asyncio.gather(*(ask.run(self) for ask in late))
        await asyncio.sleep(_RETIRE_S + 4.0)
        self.checks.rest.graves(_LATE)

    def _at_rest(self) -> bool:
        if any(ask.ending is Ending.NONE for ask in self.asks):
            return False
        if any(not record.ended for record in self.checks.records.now.values()):
            return False
        for process in self.processes.values():
            service = process.life.service if process.life else None
            if service is None or service.leases():
                return False
            if not service.ready() and (process.role != "gateway" or self.pairs()):
                return False
            engine = process.engine()
            if engine is not None and engine.jobs:
                return False
        return True

    def _clean(self) -> bool:
        proved = all(
            record.cleaned.src and record.cleaned.dst
            for record in self.checks.records.now.values()
            if record.placement is not None
        )
        lives = (process.life for process in self.processes.values())
        services = [life.service for life in lives if life is not None and life.service is not None]
        return proved and not any(any(each.tables().values()) for each in services)

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
    began = time.process_time()
    collecting = gc.isenabled()
    gc.disable()
    world = World(draw(seed))
    world.trace.last = type(world.trace.last)(maxlen=keep)
    deep = seed % 16 == 0 if graves is None else graves
    try:
        with warnings.catch_warnings(record=True) as warned, logs_into(world.trace):
            warnings.simplefilter("always")
            _run(world, graves=deep)
    finally:
        if collecting:
            gc.enable()
    for warning in warned:
        world.trace.remark("warning", str(warning.message))
    return _outcome(world, time.process_time() - began)


def _run(world: World, *, graves: bool) -> None:
    try:
        world.loop.run(world.run(graves=graves), limit=_STEPS)
    except (Deadlock, StepLimit) as error:
        world.trace.violate(type(error).__name__, str(error))
    finally:
        world.loop.close()


def _outcome(world: World, cpu_s: float) -> Outcome:
    trace = world.trace
    story = ""
    if trace.violations:
        rids = {word for v in trace.violations for word in re.findall(r"\b[0-9a-z]{26}\b", v.text)}
        story = trace.readable(rids)
    return Outcome(
        seed=world.scenario.seed,
        digest=trace.digest,
        shape=world.scenario.shape,
        violations=list(trace.violations),
        remarks=list(trace.remarks),
        endings=Counter(
            f"{ask.ending.value}:{ask.code}" if ask.code else ask.ending.value for ask in world.asks
        ),
        states=Counter(str(record.state) for record in world.checks.records.now.values()),
        faults=world.faulted,
        events=Counter(trace.counts),
        facts=_facts(world),
        hits=world.matrix.hits,
        steps=world.loop.steps,
        virtual_s=world.loop.time(),
        cpu_s=cpu_s,
        story=story,
    )


def _facts(world: World) -> Counter[str]:
    records = world.checks.records.now.values()
    work = world.checks.work
    sizes = {ask.digest: ask.plan.body.prompt_tokens for ask in world.asks}
    return Counter(
        asks=len(world.asks),
        asks_with_key=sum(ask.plan.key is not None for ask in world.asks),
        requests=len(records),
        retries=sum(max(0, record.attempt) for record in records),
        migrations=sum(record.usage.migrations for record in records if record.usage),
        taken_over=sum(record.sink.epoch > 0 for record in records),
        prefill_runs=work.prefills.total(),
        prefill_tokens=work.prompt_tokens,
        asked_tokens=sum(sizes.get(r.digest, _WARM_UP) for r in records if r.placement),
    )
