"""One process of the world: a service instance that can start, crash and start again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from libs.bus.api import BusError, Store
from libs.lifecycle.tasks import Tasks
from proto.ids import Incarnation, InstanceId, new_incarnation, new_instance
from proto.ledger import RequestRecord
from proto.results import StoredResult
from proto.workers import CompatCard
from tests.sim.kernel import Domain, SimClock
from tests.sim.ports import CARD, EngineHooks, EngineSettings, SimBus, SimEngine, SimStore
from tests.sim.ports.network import LinkState

if TYPE_CHECKING:
    from tests.sim.fleet import Hosted
    from tests.sim.world import World

__all__ = ["Life", "SimProcess"]

_DRAIN_EXTRA_S = 8.0
"""How much longer than its grace a drain may take: last words, and the end of the engine."""
_VERB_GRACE_S = 20.0
_BUS_DRAIN_S = 5.0


@dataclass(slots=True, eq=False)
class Life:
    """One run of a process, from its start to its crash: what its service is built from."""

    role: str
    domain: Domain
    bus: SimBus
    store: Store[RequestRecord]
    results: Store[StoredResult]
    clock: SimClock
    tasks: Tasks
    instance: InstanceId
    incarnation: Incarnation
    engines: list[SimEngine] = field(default_factory=list)
    service: Hosted | None = None
    paused_until: float = 0.0
    handlers: list[asyncio.Task[None]] = field(default_factory=list)
    """HTTP requests of a gateway."""
    began_s: float = 0.0
    stopping: bool = False
    stopped_s: float = 0.0
    """When it was asked to end."""


class SimProcess:
    """A place in the world where one service runs, life after life."""

    def __init__(self, world: World, name: str, role: str) -> None:
        self._world = world
        self.name = name
        self.role = role
        self.lives = 0
        self.verb_grace_s = _VERB_GRACE_S
        self.life: Life | None = None
        self.engine_settings = EngineSettings(
            step_s=world.scenario.step_s,
            prefill_tokens_s=world.scenario.prefill_tokens_s,
            linger_s=world.scenario.linger_s,
        )
        self._instance: InstanceId | None = None

    def start(self) -> None:
        """Begin a new life."""
        world = self._world
        self.lives += 1
        domain = Domain(f"{self.name}.{self.lives}")
        clock = SimClock(
            world.loop, world.rng.getrandbits(48), skew_ms=world.scenario.skew_ms[self.name]
        )
        bus = SimBus(world.network, domain.name, domain)
        if self._instance is None or world.rng.random() < 0.5:
            self._instance = new_instance(self.role, clock.entropy)
        self.life = Life(
            role=self.role,
            domain=domain,
            bus=bus,
            store=SimStore(world.ledger, bus, RequestRecord),
            results=SimStore(world.results, bus, StoredResult),
            clock=clock,
            tasks=Tasks(),
            instance=self._instance,
            incarnation=new_incarnation(clock.entropy),
            began_s=world.loop.time(),
        )
        world.names[self.life.incarnation] = self.name
        world.trace.note("process", f"{domain.name} starts as {self._instance}")
        world.loop.spawn(domain, self._main(self.life), name=f"main {domain.name}")

    def crash(self, *, linger_s: float = 0.0) -> None:
        """End this life between two steps; its engine dies with it."""
        life, self.life = self.life, None
        if life is None:
            return
        self._world.trace.note("process", f"{life.domain.name} crashes")
        self._world.loop.kill(life.domain)
        self._world.network.leave(life.bus.link, linger_s=linger_s)
        for engine in life.engines:
            engine.crash("the worker process died")

    def stop(self, grace_s: float) -> None:
        """Ask this life to end in order, as SIGTERM does."""
        life = self.life
        if life is None or life.stopping or life.service is None:
            return
        life.stopping = True
        life.stopped_s = self._world.loop.time()
        self._world.trace.note("process", f"{life.domain.name} drains for {grace_s:.1f} s")
        self._world.loop.spawn(life.domain, self._drain(life, life.service, grace_s), name="drain")

    def serves(self) -> bool:
        """Return whether it is there and ready."""
        return self.life is not None and self.life.service is not None and self.life.service.ready()

    def set_clock(self, off_ms: float) -> None:
        """Set the Unix clock of this process wrong by so much; its monotonic clock goes on."""
        if self.life is not None:
            self.life.clock.skew_ms = self._world.scenario.skew_ms[self.name] + off_ms

    def engine(self) -> SimEngine | None:
        """Return the engine that is alive now."""
        if self.life is None:
            return None
        alive = [engine for engine in self.life.engines if engine.alive]
        return alive[-1] if alive else None

    def make_engine(self, life: Life, incarnation: Incarnation) -> SimEngine:
        """Make the next engine of a life."""
        checks, progress = self._world.checks, self._world.progress
        engine = SimEngine(
            loop=self._world.loop,
            plane=self._world.plane,
            name=self.name,
            incarnation=incarnation,
            settings=self.engine_settings,
            card=self.card,
            hooks=EngineHooks(
                came=lambda job: checks.work.job_came(self, life, job),
                began=lambda job: (progress.began(job), checks.work.prefill_ran(self, job)),
                computed=progress.computed,
                first_token=progress.first_token,
            ),
        )
        life.engines.append(engine)
        self._world.names[incarnation] = self.name
        self._world.cards[incarnation] = self.card
        return engine

    @property
    def card(self) -> CompatCard:
        """What this life's engine must agree in with its peers."""
        scenario = self._world.scenario
        life = scenario.odd.get(self.name)
        if life is None or self.lives < life:
            return CARD
        value = getattr(CARD, scenario.odd_field)
        other = value + 1 if isinstance(value, int) else f"{value or ''}x"
        return msgspec.structs.replace(CARD, **{scenario.odd_field: other})

    async def _main(self, life: Life) -> None:
        # A real process opens its bus first, and gives up if it loses it before it has started.
        while life.bus.link.state is not LinkState.UP:
            await life.clock.sleep(0.05)
        life.service = self._world.build(self, life)
        try:
            await life.service.start()
        except BusError as error:
            self._world.trace.note("process", f"{life.domain.name} cannot start: {error!r}")
            self._world.network.later(0.0, self._start_again, life)

    async def _drain(self, life: Life, service: Hosted, grace_s: float) -> None:
        began = self._world.loop.time()
        try:
            async with asyncio.timeout(grace_s + _DRAIN_EXTRA_S):
                await service.drain(grace_s)
        except TimeoutError:
            self._world.trace.violate("drain", f"{life.domain.name} takes too long")
        await life.tasks.cancel()
        await life.bus.flush(_BUS_DRAIN_S)
        spent = self._world.loop.time() - began
        self._world.trace.note("process", f"{life.domain.name} has drained in {spent:.2f} s")
        self._world.network.later(0.0, self._start_again, life)

    def _start_again(self, life: Life) -> None:
        if self.life is life:
            self.crash()
            self._world.network.later(0.5, self._start_if_down)

    def _start_if_down(self) -> None:
        if self.life is None:
            self.start()
