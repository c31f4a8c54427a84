"""Bugs in what an idempotency key stands for."""

from __future__ import annotations

import random
from typing import Any

from proto.ids import RequestId, keyed_request_id, new_request_id
from proto.ledger import RequestState
from services.gateway.calls import coordinator, live
from services.gateway.calls.coordinator import Coordinator
from services.gateway.calls.live import LiveCall
from tests.sim.mutants.plant import Mutant, mutant, nothing

__all__ = ["KEYED"]

_rng = random.Random(1)


def _new_each_time(_tenant: Any, _key: Any, _generation: Any) -> RequestId:
    return new_request_id(1_700_000_000_000, _rng)


def _of_anybody(_tenant: Any, key: str, generation: int) -> RequestId:
    return keyed_request_id("", key, generation)  # type: ignore[arg-type]


async def _leave_at_once(self: Any, reason: str) -> None:
    if not self._readers and not self.log.ended:
        self.cancel(reason)


_ended = Coordinator._ended


async def _cancelled_anew(self: Any, record: Any) -> Any:
    if record.state is RequestState.CANCELLED:
        return None
    return await _ended(self, record)


KEYED: dict[str, Mutant] = {
    "a resubmission forks": mutant("I8", 0, (coordinator, "keyed_request_id", _new_each_time)),
    "keys are shared by tenants": mutant(
        "I8 I10", 0, (coordinator, "keyed_request_id", _of_anybody)
    ),
    "bodies are not compared": mutant("I8", 3, (coordinator, "_check_digest", lambda *_: None)),
    "results are not kept": mutant("I8", 0, (live, "keep_result", nothing)),
    "nobody may come back": mutant("I8", 11, (LiveCall, "_linger", _leave_at_once)),
    "holds are not heard": mutant("I8", 11, (LiveCall, "hold", lambda *_: None)),
    "a failure is forgotten at once": mutant("I8", 13, (coordinator, "_FORGET_FAILURE_MS", 0)),
    "a cancelled key begins anew": mutant("I8", 2, (Coordinator, "_ended", _cancelled_anew)),
}
