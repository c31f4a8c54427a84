"""How the services are built: the only module of the simulator that knows their constructors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from libs.fleet import Fleet
from proto.ids import RequestId
from proto.workers import Role
from services.cleanup import CleanupService
from services.decode import DecodeService
from services.gateway.api import Calls
from services.gateway.calls import CallOwner, Coordinator
from services.gateway.fleet import GatewayFleet
from services.prefill import PrefillService
from services.router import RouterService
from tests.sim.ports import CARD, text_of
from tests.sim.process import Life, SimProcess

__all__ = ["Hosted", "build"]


class SimTexts:
    """The detokenizer of the simulated model."""

    def text_of(self, model: str, ids: bytes) -> str | None:
        """Return the text of some tokens."""
        return text_of(ids) if model == CARD.model else None


@dataclass(slots=True)
class Hosted:
    """A service as the simulator uses it."""

    start: Callable[[], Awaitable[None]]
    drain: Callable[[float], Awaitable[None]]
    calls: Calls | None = None
    """What a gateway offers to its HTTP side."""
    leases: Callable[[], list[RequestId]] = list
    """The requests for which a worker holds open leases."""
    tables: Callable[[], dict[str, int]] = dict
    """Sizes of what must be empty when nothing goes on."""
    graves: Callable[[], int] = int
    """Tombstones."""
    ready: Callable[[], bool] = bool
    parts: dict[str, Any] = field(default_factory=dict)


def build(process: SimProcess, life: Life) -> Hosted:
    """Return the service of one life of one process."""
    return _BUILDERS[life.role](process, life)


def _router(_process: SimProcess, life: Life) -> Hosted:
    service = RouterService(
        bus=life.bus,
        store=life.store,
        clock=life.clock,
        tasks=life.tasks,
        instance=life.instance,
        incarnation=life.incarnation,
    )
    return Hosted(
        start=service.start,
        drain=service.drain,
        tables=lambda: {"turns": len(service._turns)},
        ready=lambda: service.readiness()[0],
    )


def _gateway(_process: SimProcess, life: Life) -> Hosted:
    fleet = Fleet()
    coordinator = Coordinator(
        bus=life.bus,
        store=life.store,
        results=life.results,
        clock=life.clock,
        tasks=life.tasks,
        fleet=fleet,
        identity=CallOwner(life.instance, life.incarnation),
        texts=SimTexts(),
    )
    view = GatewayFleet(
        bus=life.bus,
        clock=life.clock,
        tasks=life.tasks,
        calls=coordinator,
        fleet=fleet,
        instance=life.instance,
        incarnation=life.incarnation,
    )

    async def start() -> None:
        await coordinator.start()
        await view.start()

    async def drain(grace_s: float) -> None:
        began = life.clock.monotonic()
        await view.drain()
        await _stop_http(life, grace_s)
        spent = life.clock.monotonic() - began
        await coordinator.drain(max(0.0, grace_s - spent))
        await view.close()

    return Hosted(
        start=start,
        drain=drain,
        calls=coordinator,
        tables=lambda: {"calls": coordinator.running, "boxes": len(coordinator._mailroom)},
        ready=lambda: view.readiness().ok,
    )


async def _stop_http(life: Life, grace_s: float) -> None:
    """Let running answers end within the grace, as the HTTP server does; then cut them."""
    running = {handler for handler in life.handlers if not handler.done()}
    if running:
        _, late = await asyncio.wait(running, timeout=grace_s)
        for handler in late:
            handler.cancel()
        if late:
            await asyncio.wait(late, timeout=2.0)


def _cleanup(_process: SimProcess, life: Life) -> Hosted:
    service = CleanupService(
        bus=life.bus,
        store=life.store,
        clock=life.clock,
        tasks=life.tasks,
        instance=life.instance,
        incarnation=life.incarnation,
    )
    return Hosted(
        start=service.start,
        drain=service.drain,
        tables=lambda: {
            "watched": len(service.watch),
            "freed": len(service._endings._freed),
            "orphans": len(service._endings._orphan_ms),
            "due": len(service._endings._due_s),
            "unfinished": sum(1 for _ in service._unfinished),
        },
        ready=lambda: service.readiness()[0],
    )


def _worker(process: SimProcess, life: Life) -> Hosted:
    service: PrefillService | DecodeService
    if life.role == "prefill":
        service = PrefillService(
            bus=life.bus,
            clock=life.clock,
            tasks=life.tasks,
            engines=lambda incarnation: process.make_engine(life, incarnation),
            instance=life.instance,
            stop=lambda: process.stop(process.verb_grace_s),
        )
    else:
        service = DecodeService(
            bus=life.bus,
            clock=life.clock,
            tasks=life.tasks,
            engines=lambda incarnation: process.make_engine(life, incarnation),
            instance=life.instance,
            stop=lambda: process.stop(process.verb_grace_s),
            role=Role.AGGREGATED if life.role == "aggregated" else Role.DECODE,
            # Ways between engines are measured by real data planes only.
            probes=False,
        )
    worker = service.worker
    return Hosted(
        start=service.start,
        drain=service.drain,
        leases=lambda: [lease.rid for lease in worker.leases],
        tables=lambda: {"leases": len(worker.leases), "attempts": len(worker.attempts)},
        graves=lambda: len(worker.tombstones),
        ready=lambda: service.readiness()[0],
    )


_BUILDERS: dict[str, Callable[[SimProcess, Life], Hosted]] = {
    "gateway": _gateway,
    "router": _router,
    "prefill": _worker,
    "decode": _worker,
    "aggregated": _worker,
    "cleanup": _cleanup,
}
