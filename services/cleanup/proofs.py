"""What liveness and inventories prove about an ended request, without its owner's word. Pure.

The owner's word (`lease.ended`) is a message, and messages are lost; a cleanup that starts later
has never heard it. What it can always see is who lives and which leases they list now.
"""

from __future__ import annotations

from libs.fleet import Fleet, Health
from proto.ids import LeaseId, lease_id
from proto.ledger import RequestRecord
from proto.workers import LeaseSide, WorkerRef
from services.cleanup.watch import Evidence

__all__ = ["SETTLED_MS", "lease_of", "proved_free"]

SETTLED_MS = 7_000
"""How long after the end of a request an inventory proves absence: no start can still be on its
way, because starts carry a `not_after` of five seconds."""


def proved_free(record: RequestRecord, fleet: Fleet, now_s: float) -> dict[LeaseSide, Evidence]:
    """Return the sides of an ended request that hold no memory any more, and why."""
    proved: dict[LeaseSide, Evidence] = {}
    for side in LeaseSide:
        owner = _owner(record, side)
        # Where nobody was to hold anything, because it was never placed, there is nothing to free.
        evidence = (
            Evidence.E2_ABSENT if owner is None else _judge(record, side, owner, fleet, now_s)
        )
        if evidence is not None:
            proved[side] = evidence
    return proved


def lease_of(record: RequestRecord, side: LeaseSide) -> LeaseId | None:
    """Return the lease of one side of the newest attempt; None if nobody was to hold it."""
    owner = _owner(record, side)
    if owner is None:
        return None
    return lease_id(owner.incarnation, record.rid, record.attempt, side)


def _owner(record: RequestRecord, side: LeaseSide) -> WorkerRef | None:
    placement = record.placement
    if placement is None:
        return None
    return placement.prefill if side is LeaseSide.SRC else placement.decode


def _judge(
    record: RequestRecord, side: LeaseSide, owner: WorkerRef, fleet: Fleet, now_s: float
) -> Evidence | None:
    health = fleet.health(owner.incarnation, now_s)
    if health is None or health is Health.DEAD:
        return Evidence.E3_GONE
    member = fleet.get(owner.incarnation)
    if member is None or member.heartbeat.sent_ms < (record.ended_ms or 0) + SETTLED_MS:
        return None
    lease = lease_of(record, side)
    listed = any(ref.lease == lease for ref in member.heartbeat.leases)
    return None if listed else Evidence.E2_ABSENT
