"""How busy a worker is, by its engine's figures and by what it has promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from libs.engine import Engine
from libs.fleet.announcer import Presence
from libs.telemetry import gauge, names
from libs.worker.leases import LeaseTable
from proto.host import EngineLoad, EngineReady
from proto.workers import Role, WorkerLoad

if TYPE_CHECKING:
    from libs.worker.worker import Worker

__all__ = ["expose", "load_of", "presence_of"]


def load_of(ready: EngineReady, load: EngineLoad, leases: LeaseTable, role: Role) -> WorkerLoad:
    """Return the load; leases count as soon as they are promised."""
    return WorkerLoad(
        running=load.running,
        waiting=load.waiting,
        waiting_tokens=leases.tokens if role is Role.PREFILL else 0,
        slots=ready.slots,
        slots_free=max(0, ready.slots - len(leases)),
        kv_used_tokens=load.kv_used_tokens,
        kv_total_tokens=ready.kv_total_tokens,
        kv_reserved_tokens=leases.tokens,
        kv_unshared_links=load.unshared_links,
        engine_age_s=load.age_s,
    )


def presence_of(worker: Worker) -> Presence:
    """Return what a worker announces of itself."""
    ready, engine = worker.ready, worker.engine
    busy = None
    if ready is not None and engine is not None:
        busy = load_of(ready, engine.load(), worker.leases, worker.role)
    return Presence(
        ref=worker.ref,
        state=worker.state,
        reason=worker.reason or worker.trouble(),
        card=ready.card if ready else None,
        address=ready.address if ready else None,
        load=busy,
        leases=worker.leases.refs(worker.clock.monotonic()),
        pids=ready.pids if ready else (),
        features=ready.features if ready else (),
        kv_lanes=worker.kv_lanes,
        pairs=worker.pairs.reports(),
    )


def expose(engine: Callable[[], Engine | None], role: Role) -> None:
    """Show what the data plane of the worker's present engine counts."""

    def read(figure: str) -> float:
        present = engine()
        return float(getattr(present.load(), figure)) if present is not None else 0.0

    gauge(names.KV_INFLIGHT_TRANSFERS, lambda: read("open_rooms"), role=str(role))
    gauge(names.KV_DROPPED_CHUNKS, lambda: read("dropped_chunks"), role=str(role))
    gauge(names.KV_UNSHARED_LINKS, lambda: read("unshared_links"), role=str(role))
