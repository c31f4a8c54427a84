"""Leases and what engines hold: freed in time, and not before (I3, I5, I7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proto.events import Event, EventKind
from proto.ids import LeaseId, RequestId, job_id
from tests.sim.ports.network import Link, LinkState

if TYPE_CHECKING:
    from tests.sim.process import SimProcess
    from tests.sim.world import World

__all__ = ["Leases"]

_STOP_BOUND_S = 5.0
_LEASE_BOUND_S = 10.0
_ORPHAN_BOUND_S = 18.0
"""A worker that hears no gateway stops by itself: 15 s, a beat, and the way to the engine."""


class Leases:
    """Follows what is held."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.trace.violate
        self._alone_s: dict[str, float] = {}

    def told(self, link: Link, event: Event) -> None:
        """I5: the owner's word that a lease has ended is true at that moment."""
        if event.kind is not EventKind.LEASE_ENDED or event.rid is None:
            return
        process = self._world.processes.get(link.name.partition(".")[0])
        engine = process.engine() if process else None
        if engine is None or process is None:
            return
        lease = LeaseId(str(event.data.get("lease", "")))
        if not lease.startswith(engine.incarnation):
            return
        if job_id(event.rid, event.attempt) in engine.jobs:
            self._violate("I5", f"{event.rid}: {process.name} frees what its engine still uses")

    def watch(self) -> None:
        """I3 and I7: engines stop, leases end, and workers that hear nobody stop by themselves."""
        for process in self._world.processes.values():
            self._watch_engine(process)
            self._watch_leases(process)
            self._watch_alone(process)

    def _watch_engine(self, process: SimProcess) -> None:
        engine = process.engine()
        if engine is None:
            return
        quiet = min(self._world.scenario.heal_s, self._world.scenario.quiet_s)
        now = self._world.loop.time()
        for job in engine.jobs:
            rid = RequestId(job[:26])
            ended = self._world.checks.records.ended_s.get(rid)
            bound = _STOP_BOUND_S + self._world.scenario.linger_s
            if ended is not None and now > max(ended, quiet) + bound:
                self._world.once("I7", f"{rid}: {process.name} still runs {job}")

    def _watch_leases(self, process: SimProcess) -> None:
        life = process.life
        if life is None or life.service is None:
            return
        now, healed = self._world.loop.time(), self._world.scenario.heal_s
        for rid in life.service.leases():
            own = self._world.checks.records.deadline_s(rid) + _LEASE_BOUND_S
            if now > max(own, healed + _LEASE_BOUND_S):
                self._world.once("I3", f"{rid}: {process.name} still holds a lease")
            elif now > max(own, life.paused_until + _LEASE_BOUND_S):
                self._world.remark_once(
                    "I3", f"{rid}: {process.name} holds a lease in spite of {own:.0f}"
                )

    def _watch_alone(self, process: SimProcess) -> None:
        """I7: whoever is cut off from all gateways stops what it runs for them."""
        life, engine = process.life, process.engine()
        now = self._world.loop.time()
        if life is None or engine is None or life.domain.paused:
            self._alone_s.pop(process.name, None)
            return
        if life.bus.link.state is LinkState.UP or not life.domain.alive:
            self._alone_s.pop(process.name, None)
            return
        since = self._alone_s.setdefault(process.name, now)
        bound = max(since, life.paused_until) + _ORPHAN_BOUND_S + self._world.scenario.linger_s
        if now > bound and engine.jobs:
            self._world.once("I7", f"{process.name} runs {engine.jobs}, alone since {since:.1f}")
