"""The verbs that every worker answers, whichever its role."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proto.base import Message
from proto.control import Abort, Aborted, Drain, Draining, Inventory, InventoryRequest

if TYPE_CHECKING:
    from libs.worker.worker import Worker

__all__ = ["Verb", "control_verbs"]


@dataclass(frozen=True, slots=True)
class Verb:
    """A request that a worker answers."""

    name: str
    request: type[Message]
    handler: Callable[[Any], Awaitable[Message]] | Callable[[Any], Message]
    """As that of an `Endpoint`: a plain function must never wait."""


def control_verbs(worker: Worker) -> tuple[Verb, ...]:
    """Return `abort`, `release` (the same, as cleanup orders it), `inventory` and `drain`."""

    async def abort(ask: Abort) -> Aborted:
        return await worker.abort(ask.rid, ask.attempt, ask.reason)

    def inventory(_ask: InventoryRequest) -> Inventory:
        load = worker.engine.load() if worker.engine else None
        return Inventory(
            leases=worker.leases.refs(worker.clock.monotonic()),
            tombstones=len(worker.tombstones),
            kv_used_tokens=load.kv_used_tokens if load else 0,
        )

    def drain(_ask: Drain) -> Draining:
        return Draining(running=worker.begin_drain())

    return (
        Verb("abort", Abort, abort),
        Verb("release", Abort, abort),
        Verb("inventory", InventoryRequest, inventory),
        Verb("drain", Drain, drain),
    )
