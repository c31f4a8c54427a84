"""Processes at rest: nothing is held, everybody serves (I3, I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.process import SimProcess
    from tests.sim.world import World

__all__ = ["Rest"]

_MOST_TASKS = 8
_MOST_SUBSCRIPTIONS = 12


class Rest:
    """Looks at all processes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._violate = world.trace.violate

    def final(self) -> None:
        """Check what each process holds."""
        for process in self._world.processes.values():
            self._check(process)

    def graves(self, fresh: int) -> None:
        """I11: only the tombstones of the last few requests are left."""
        for process in self._world.processes.values():
            service = process.life.service if process.life else None
            if service is not None and service.graves() > fresh:
                self._violate("I11", f"{process.name}: {service.graves()} tombstones too old")

    def _check(self, process: SimProcess) -> None:
        engine = process.engine()
        if engine is not None and (engine.memory.used or engine.jobs):
            self._violate("I3", f"{process.name}: {engine.memory.used} pages, jobs {engine.jobs}")
        service = process.life.service if process.life else None
        if process.life is None or service is None or not self._serves(process):
            self._violate("ready", f"{process.name} does not serve again")
            return
        for name, size in service.tables().items():
            if size:
                self._violate("I11", f"{process.name}: {size} {name} at rest")
        tasks = self._world.loop.live_tasks(process.life.domain)
        if len(tasks) > _MOST_TASKS:
            self._violate("I11", f"{process.name}: {len(tasks)} tasks at rest: {tasks}")
        if process.life.bus.subscriptions > _MOST_SUBSCRIPTIONS:
            self._violate("I11", f"{process.name}: {process.life.bus.subscriptions} subscriptions")

    def _serves(self, process: SimProcess) -> bool:
        service = process.life.service if process.life else None
        if service is None:
            return False
        # Without two workers that fit together no gateway can serve.
        return service.ready() or (process.role == "gateway" and not self._world.pairs())
