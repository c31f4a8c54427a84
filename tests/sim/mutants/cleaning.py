"""Bugs in cleanup."""

from __future__ import annotations

from typing import Any

from proto.errors import ErrorCode
from proto.ledger import Cleaned
from services.cleanup import CleanupService, endings, proofs
from services.cleanup import cleanup as cleanup_room
from services.cleanup.endings import Endings
from services.cleanup.watch import Evidence
from tests.sim.mutants.plant import Mutant, mutant, nothing

__all__ = ["CLEANING"]


async def _end_all(self: Any, record: Any) -> None:
    if not record.ended:
        await self._end(record, ErrorCode.GATEWAY_LOST, "")


CLEANING: dict[str, Mutant] = {
    "no cleanup": mutant(
        "I2 I3 I11 cleaned",
        0,
        (CleanupService, "_scan", nothing),
        (CleanupService, "_reconcile", nothing),
    ),
    "the living are released": mutant(
        "I3", 0, (cleanup_room, "_orphaned", lambda *_: "it is there")
    ),
    "requests of living gateways are ended": mutant("I2", 0, (Endings, "consider", _end_all)),
    "clean without proof": mutant(
        "I3",
        0,
        (proofs, "_judge", lambda *_: Evidence.E2_ABSENT),
        (cleanup_room, "_RECONCILE_S", 0.4),
    ),
    "one free side counts for both": mutant(
        "I3", 0, (endings, "_cleaned", lambda *_: Cleaned(src=True, dst=True))
    ),
    "silence proves nothing": mutant("cleaned", 12, (cleanup_room, "proved_free", lambda *_: {})),
}
