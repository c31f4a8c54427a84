"""The object graph of cleanup."""

from __future__ import annotations

from libs.lifecycle import Parts
from services.cleanup.cleanup import CleanupService
from services.cleanup.settings import Settings

__all__ = ["SERVICE", "build"]

SERVICE = "cleanup"


async def build(parts: Parts[Settings]) -> CleanupService:
    """Return the service of this process."""
    return CleanupService(
        bus=parts.bus,
        store=parts.store,
        clock=parts.clock,
        tasks=parts.tasks,
        instance=parts.instance,
        incarnation=parts.incarnation,
    )
