"""Bugs in placing and claiming."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.bus.api import Versioned
from libs.worker import Worker
from services.decode import answering
from services.router import candidates as candidates_room
from services.router import claims
from services.router.placing import Placing
from tests.sim.mutants.plant import Mutant, mutant, nothing

__all__ = ["ROUTED"]

_record = Placing._record


async def _as_unplaced(self: Any, ask: Any) -> Any:
    found = await _record(self, ask)
    return Versioned(msgspec.structs.replace(found.value, placement=None), found.revision)


_admit = Worker.admit


def _any_card(self: Any, rid: Any, attempt: Any, _compat: Any, not_after_ms: Any) -> Any:
    card = self.ready.card.compat if self.ready else ""
    return _admit(self, rid, attempt, card, not_after_ms)


ROUTED: dict[str, Mutant] = {
    "claims are not asked for": mutant("I4", 11, (answering, "claim", nothing)),
    "claims are granted to anybody": mutant("I2 I4", 34, (claims, "_check", lambda *_: None)),
    "an attempt is placed twice": mutant("I4", 10, (Placing, "_record", _as_unplaced)),
    "versions are not compared": mutant(
        "I9",
        3,
        (candidates_room, "refusal_of", lambda *_: None),
        (Worker, "admit", _any_card),
    ),
}
