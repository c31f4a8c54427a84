"""The object graph of the router."""

from __future__ import annotations

from libs.lifecycle import Parts
from services.router.router import RouterService
from services.router.settings import Settings

__all__ = ["SERVICE", "build"]

SERVICE = "router"


async def build(parts: Parts[Settings]) -> RouterService:
    """Return the service of this process."""
    return RouterService(
        bus=parts.bus,
        store=parts.store,
        clock=parts.clock,
        tasks=parts.tasks,
        instance=parts.instance,
        incarnation=parts.incarnation,
        policy=parts.settings.policy,
    )
