"""Reading the ledger of requests."""

from __future__ import annotations

import heapq
from collections.abc import Collection

from libs.bus import BucketSpec, NatsBus, NatsStore
from ops.cli.errors import CommandError
from proto.ids import RequestId
from proto.ledger import RequestRecord, RequestState
from proto.subjects import BUCKET_REQUESTS

__all__ = ["find_request", "ledger_of", "newest_requests"]


def ledger_of(bus: NatsBus) -> NatsStore[RequestRecord]:
    """Return the ledger."""
    return bus.store(BucketSpec(name=BUCKET_REQUESTS), RequestRecord)


async def find_request(bus: NatsBus, rid: RequestId) -> RequestRecord:
    """Return the record of a request.

    Raises:
        CommandError: there is none.
    """
    found = await ledger_of(bus).get(rid)
    if found is None:
        message = (
            f"there is no request {rid} (records are kept for an hour after their last change)"
        )
        raise CommandError(message)
    return found.value


async def newest_requests(
    bus: NatsBus, states: Collection[RequestState], limit: int
) -> list[RequestRecord]:
    """Return the requests that came last, the newest first.

    Args:
        bus: where the ledger is.
        states: only requests that stand so; empty takes all.
        limit: how many.
    """
    # A record that changes during the scan comes twice, the newer version later.
    known: dict[str, RequestRecord] = {}
    async for key, found in ledger_of(bus).scan():
        known[key] = found.value
    wanted = (r for r in known.values() if not states or r.state in states)
    return heapq.nlargest(limit, wanted, key=lambda r: (r.created_ms, r.rid))
