"""Makes faults happen, and ends them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from proto.ids import RequestId
from tests.sim.client import Ending
from tests.sim.ports import NO_LOSS, Loss
from tests.sim.progress import Standing
from tests.sim.scenario import Fault

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["FaultScript"]

_VICTIMS = (
    *("", "", ".start", ".start", ".cancel.", ".abort", ".tokens.", ".place", ".claim"),
    *(".reserve", ".replay", ".release", ".gateway.", ".events."),
)
"""Which subjects lose messages: all, or those that contain this."""
_JUMP_MS = 900.0
_CUT_OFF_S = 2.0
"""How long the server waits for a process that does not read."""


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
            "clock": self._clock,
            "cancel": self._cancel,
            "leave": self._leave,
            "roll": self._roll,
        }

    def schedule(self) -> None:
        """Put all faults and the healing on the timeline."""
        network = self._world.network
        for fault in self._world.scenario.faults:
            when = fault.when
            if when is None:
                network.later(fault.at_s, self._start, fault, None)
            else:
                self._world.progress.when(when.state, when.nth, self._steer(fault, when.after_s))
        network.later(self._world.scenario.heal_s, self.heal)

    def heal(self) -> None:
        """End everything that still goes wrong, and start what is down."""
        world = self._world
        world.trace.note("fault", "healed")
        world.network.loss = NO_LOSS
        for ledger in (world.ledger, world.results):
            ledger.faults.lost_ack = ledger.faults.stale_read = 0.0
            ledger.faults.away = False
        world.plane.mend()
        for process in world.processes.values():
            process.engine_settings.slow = 1.0
            if process.life is None:
                process.start()
            process.set_clock(0.0)
            world.loop.resume(process.life.domain)
            world.network.rejoin(process.life.bus.link)
        if not world.network.up:
            world.network.start_server()
        for link in list(world.network.links.values()):
            if link.cut:
                world.network.mend(link)

    def _steer(self, fault: Fault, after_s: float):
        def entered(standing: Standing) -> None:
            network = self._world.network
            if network.loop.time() < self._world.scenario.heal_s - 1.0:
                network.later(after_s, self._start, fault, standing)

        return entered

    def _start(self, fault: Fault, standing: Standing | None) -> None:
        world = self._world
        target = fault.target
        if standing is not None:
            target, other = self._aim(fault, standing)
            fault = replace(fault, target=target, other=other or fault.other)
        what = f"{fault.kind} {fault.target} {fault.other}"
        world.trace.note("fault", f"{what} for {fault.for_s:.2f} s {fault.value:.2f} {fault.flag}")
        about = standing.rid if standing else None
        if fault.kind in {"cancel", "leave"}:
            self._starts[fault.kind](fault, about)
            return
        world.matrix.fault(fault, target)
        world.faulted[fault.kind] += 1
        self._starts[fault.kind](fault)

    def _aim(self, fault: Fault, standing: Standing) -> tuple[str, str]:
        """Return the processes that a fault hits because of a request."""
        world = self._world
        placement = standing.placement
        prefill = decode = None
        if placement is not None:
            decode = world.names.get(placement.decode.incarnation)
            prefill = world.names.get(placement.prefill.incarnation) if placement.prefill else None
        prefill = prefill or world.pick("prefill")
        decode = decode or world.pick("decode")
        if fault.kind == "plane-cut":
            return prefill, decode if decode.startswith("decode") else world.pick("decode")
        if fault.target == "gateway":
            return world.names.get(standing.gateway) or world.pick("gateway"), ""
        named = {"prefill": prefill, "decode": decode}
        if fault.target in named:
            return named[fault.target], ""
        return (world.pick(fault.target) if fault.target else world.pick("gateway")), ""

    # Processes

    def _crash(self, fault: Fault) -> None:
        process = self._world.processes[fault.target]
        process.crash(linger_s=fault.value)
        self._world.network.later(fault.for_s, self._restart, fault.target)

    def _drain(self, fault: Fault) -> None:
        process = self._world.processes[fault.target]
        if fault.flag and process.role in {"prefill", "decode", "aggregated"}:
            process.verb_grace_s = fault.for_s
            self._world.operator.drain(process)
        else:
            process.stop(fault.for_s)

    def _roll(self, fault: Fault) -> None:
        self._world.loop.spawn(None, self._restart_in_turn(fault), name="roll")

    async def _restart_in_turn(self, fault: Fault) -> None:
        """Drain one process after the other; go on when the last one serves again."""
        for name in fault.target.split(","):
            process = self._world.processes[name]
            lives = process.lives
            one = replace(fault, kind="drain", target=name)
            self._world.matrix.fault(one, name)
            self._drain(one)
            while process.lives == lives or not process.serves():
                await asyncio.sleep(0.1)
            await asyncio.sleep(1.1)

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
        if life is None:
            return
        network = self._world.network
        life.paused_until = self._world.loop.time() + fault.for_s
        self._world.loop.pause(life.domain)
        if fault.flag and fault.for_s > _CUT_OFF_S:
            network.later(_CUT_OFF_S, network.sever, life.bus.link)
            network.later(fault.for_s, network.rejoin, life.bus.link)
        network.later(fault.for_s, self._world.loop.resume, life.domain)

    def _clock(self, fault: Fault) -> None:
        process = self._world.processes[fault.target]
        process.set_clock((2 * fault.value - 1) * _JUMP_MS)
        self._world.network.later(fault.for_s, process.set_clock, 0.0)

    def _slow(self, fault: Fault) -> None:
        settings = self._world.processes[fault.target].engine_settings
        settings.slow = fault.value
        self._world.network.later(fault.for_s, setattr, settings, "slow", 1.0)

    # People

    def _cancel(self, fault: Fault, about: RequestId | None) -> None:
        rid = about or self._any_request()
        if rid is not None:
            self._world.faulted["cancel"] += 1
            self._world.matrix.fault(fault, "", rid)
            self._world.operator.cancel(rid, directly=fault.flag)

    def _leave(self, fault: Fault, about: RequestId | None) -> None:
        for ask in self._world.asks:
            if ask.rid == about and ask.ending is Ending.NONE and ask.leave(self._world):
                self._world.faulted["leave"] += 1
                self._world.matrix.fault(fault, "", about)
                return

    def _any_request(self) -> RequestId | None:
        standing = self._world.progress.standing
        return self._world.rng.choice(sorted(standing)) if standing else None

    # The bus and the ledger

    def _cut(self, fault: Fault) -> None:
        life = self._world.processes[fault.target].life
        if life is not None:
            rng = self._world.rng
            network = self._world.network
            network.cut(
                life.bus.link,
                notice_s=rng.uniform(0.0, 5.5) if fault.other != "unnoticed" else fault.for_s + 1.0,
                server_s=rng.uniform(0.0, 5.5),
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
        if fault.other == "little":
            # So little that no client should notice.
            loss = Loss(drop=0.025, duplicate=0.3, delay_s=0.02, only=fault.target)
        elif fault.other == "copies":
            loss = Loss(duplicate=0.5, stale=0.3, only=fault.target)
        else:
            only = rng.choice(_VICTIMS)
            # Many messages of one kind, or some of every kind.
            drop, repeat, late = (0.3, 0.5, 0.6) if only else (0.1, 0.15, 0.15)
            loss = Loss(
                drop=rng.choice((0.0, drop / 4, drop)),
                duplicate=rng.choice((0.0, repeat / 4, repeat)),
                stale=rng.choice((0.0, late / 4, late)),
                delay_s=rng.choice((0.0, 0.0, 0.05)),
                only=only,
            )
        self._world.network.loss = loss
        self._world.network.later(fault.for_s * 2, self._loss_over)

    def _loss_over(self) -> None:
        self._world.network.loss = NO_LOSS

    def _store(self, fault: Fault) -> None:
        for ledger in (self._world.ledger, self._world.results):
            if fault.flag:
                ledger.faults.away = True
            else:
                ledger.faults.lost_ack = 0.3 * fault.value
                ledger.faults.stale_read = 0.3
        self._world.network.later(fault.for_s, self._store_back)

    def _store_back(self) -> None:
        for ledger in (self._world.ledger, self._world.results):
            ledger.faults.lost_ack = ledger.faults.stale_read = 0.0
            ledger.faults.away = False

    # The data plane

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
