"""The object graph of a decode worker."""

from __future__ import annotations

from libs.lifecycle import Parts
from libs.worker.settings import engine_factory
from proto.ledger import Mode
from proto.workers import Role
from services.decode.decode import DecodeService
from services.decode.settings import Settings

__all__ = ["SERVICE", "build"]

SERVICE = "decode"


async def build(parts: Parts[Settings]) -> DecodeService:
    """Return the service of this process."""
    aggregated = parts.settings.mode is Mode.AGGREGATED
    role = Role.AGGREGATED if aggregated else Role.DECODE
    engines = engine_factory(
        parts.settings,
        role=role,
        instance=parts.instance,
        clock=parts.clock,
        tasks=parts.tasks,
        parsers=(parts.settings.tool_parser, parts.settings.reasoning_parser),
        prefix_cache=parts.settings.prefix_cache,
    )
    return DecodeService(
        bus=parts.bus,
        clock=parts.clock,
        tasks=parts.tasks,
        engines=engines,
        instance=parts.instance,
        role=role,
        stop=parts.stop,
        kv_lanes=parts.settings.lane_policy,
        probes=parts.settings.kv_probe,
    )
