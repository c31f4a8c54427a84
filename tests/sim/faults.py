"""Makes faults happen, and ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.ports import Loss
from tests.sim.scenario import Fault

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["FaultScript"]


_VICTIMS = ("", "", "", ".start", ".start", ".cancel.", ".abort", ".tokens.", ".place", ".claim")


class FaultScript:
    """Runs the faults of a scenario against a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._starts = {
            "crash": self._crash,
            "drain": self._drain,
            "engine": self._engine,
            "pause": self._pause,
            "cut": self._cut,
            "outage": self._outage,
            "loss": self._loss,
            "plane-cut": self._plane_cut,
            "plane-stall": self._plane_stall,
            "slow": self._slow,
            "store": self._store,
        }

    def schedule(self) -> None:
        """Put all faults and the healing on the timeline."""
        network = self._world.network
        for fault in self._world.scenario.faults:
            network.later(fault.at_s, self._start, fault)
        network.later(self._world.scenario.heal_s, self.heal)

    def heal(self) -> None:
        """End everything that still goes wrong, and start what is down."""
        world = self._world
        world.trace.note("fault", "healed")
        world.network.loss = Loss()
        faults = world.ledger.faults
        faults.lost_ack = faults.stale_read = 0.0
        faults.away = False
        world.plane.mend()
        for process in world.processes.values():
            process.engine_settings.slow = 1.0
            if process.life is None:
                process.start()
            world.loop.resume(process.life.domain)
        if not world.network.up:
            world.network.start_server()
        for link in list(world.network.links.values()):
            if link.cut:
                world.network.mend(link)

    def _start(self, fault: Fault) -> None:
        self._world.trace.note(
            "fault",
            f"{fault.kind} {fault.target} {fault.other} for {fault.for_s:.2f} s {fault.value:.2f}",
        )
        self._world.faulted[fault.kind] += 1
        self._starts[fault.kind](fault)

    def _crash(self, fault: Fault) -> None:
        process = self._world.processes[fault.target]
        process.crash(linger_s=fault.value)
        self._world.network.later(fault.for_s, self._restart, fault.target)

    def _drain(self, fault: Fault) -> None:
        self._world.processes[fault.target].stop(fault.for_s)

    def _restart(self, name: str) -> None:
        process = self._world.processes[name]
        if process.life is None:
            process.start()

    def _engine(self, fault: Fault) -> None:
        engine = self._world.processes[fault.target].engine()
        if engine is not None:
            engine.crash("scripted")

    def _pause(self, fault: Fault) -> None:
        life = self._world.processes[fault.target].life
        if life is not None:
            life.paused_until = self._world.loop.time() + fault.for_s
            self._world.loop.pause(life.domain)
            self._world.network.later(fault.for_s, self._world.loop.resume, life.domain)

    def _cut(self, fault: Fault) -> None:
        life = self._world.processes[fault.target].life
        if life is not None:
            rng = self._world.rng
            network = self._world.network
            network.cut(
                life.bus.link,
                notice_s=rng.uniform(0.0, 3.0),
                server_s=rng.uniform(0.0, 3.0),
                hold=fault.flag,
            )
            network.later(fault.for_s, network.mend, life.bus.link)

    def _outage(self, fault: Fault) -> None:
        network = self._world.network
        network.stop_server(notice_s=2.5 if fault.flag else 0.0)
        network.later(fault.for_s, self._server_back)

    def _server_back(self) -> None:
        if not self._world.network.up:
            self._world.network.start_server()

    def _loss(self, fault: Fault) -> None:
        rng = self._world.rng
        only = rng.choice(_VICTIMS)
        # Many messages of one kind, or some of every kind.
        drop, repeat, late = (0.3, 0.5, 0.6) if only else (0.1, 0.15, 0.15)
        self._world.network.loss = Loss(
            drop=rng.choice((0.0, drop / 4, drop)),
            duplicate=rng.choice((0.0, repeat / 4, repeat)),
            stale=rng.choice((0.0, late / 4, late)),
            delay_s=rng.choice((0.0, 0.0, 0.05)),
            only=only,
        )
        self._world.network.later(fault.for_s * 2, self._loss_over)

    def _loss_over(self) -> None:
        self._world.network.loss = Loss()

    def _plane_cut(self, fault: Fault) -> None:
        plane = self._world.plane
        plane.cut(fault.target, fault.other)
        pair = frozenset((fault.target, fault.other))
        self._world.network.later(fault.for_s, plane.cuts.discard, pair)

    def _plane_stall(self, fault: Fault) -> None:
        self._world.plane.stall_s = fault.for_s
        self._world.network.later(fault.for_s * 2, self._plane_flows)

    def _plane_flows(self) -> None:
        self._world.plane.stall_s = 0.0

    def _slow(self, fault: Fault) -> None:
        settings = self._world.processes[fault.target].engine_settings
        settings.slow = fault.value
        self._world.network.later(fault.for_s, setattr, settings, "slow", 1.0)

    def _store(self, fault: Fault) -> None:
        faults = self._world.ledger.faults
        if fault.flag:
            faults.away = True
        else:
            faults.lost_ack = 0.3 * fault.value
            faults.stale_read = 0.3
        self._world.network.later(fault.for_s, self._store_back)

    def _store_back(self) -> None:
        faults = self._world.ledger.faults
        faults.lost_ack = faults.stale_read = 0.0
        faults.away = False
