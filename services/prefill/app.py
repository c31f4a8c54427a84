"""The object graph of a prefill worker."""

from __future__ import annotations

from libs.lifecycle import Parts
from libs.worker.settings import engine_factory
from proto.workers import Role
from services.prefill.prefill import PrefillService
from services.prefill.settings import Settings

__all__ = ["SERVICE", "build"]

SERVICE = "prefill"


async def build(parts: Parts[Settings]) -> PrefillService:
    """Return the service of this process."""
    engines = engine_factory(
        parts.settings,
        role=Role.PREFILL,
        instance=parts.instance,
        clock=parts.clock,
        tasks=parts.tasks,
    )
    return PrefillService(
        bus=parts.bus,
        clock=parts.clock,
        tasks=parts.tasks,
        engines=engines,
        instance=parts.instance,
        stop=parts.stop,
        kv_lanes=parts.settings.lane_policy,
    )
