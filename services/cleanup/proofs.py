"""What liveness and inventories prove about an ended request, without its owner's word. Pure.

The owner's word (`lease.ended`) is a message, and messages are lost; a cleanup that starts later
has never heard it. What it can always see is who lives and which leases they list now.
"""

from __future__ import annotations

from libs.fleet import Fleet, Health
from proto.ids import lease_id
from proto.ledger import RequestRecord
from proto.workers import LeaseSide, WorkerRef
from services.cleanup.watch import Evidence

__all__ = ["SETTLED_MS", "proved_free"]

SETTLED_MS = 7_000
"""How long after the end of a request an inventory proves absence: no start can still be on its
way, because starts carry a `not_after` of five seconds."""


def proved_free(record: RequestRecord, fleet: Fleet, now_s: float) -> dict[LeaseSide, Evidence]:
    """Return the sides of an ended request that hold no memory any more, and why."""
    placement = record.placement
    if placement is None:
        # It was never placed, so nobody ever held anything.
        return dict.fromkeys((LeaseSide.SRC, LeaseSide.DST), Evidence.E2_ABSENT)
    owners: dict[LeaseSide, WorkerRef | None] = {
        LeaseSide.SRC: placement.prefill,
        LeaseSide.DST: placement.decode,
    }
    proved: dict[LeaseSide, Evidence] = {}
    for side, owner in owners.items():
        evidence = (
            Evidence.E2_ABSENT if owner is None else _judge(record, side, owner, fleet, now_s)
        )
        if evidence is not None:
            proved[side] = evidence
    return proved


def _judge(
    record: RequestRecord, side: LeaseSide, owner: WorkerRef, fleet: Fleet, now_s: float
) -> Evidence | None:
    health = fleet.health(owner.incarnation, now_s)
    if health is None or health is Health.DEAD:
        return Evidence.E3_GONE
    member = fleet.get(owner.incarnation)
    if member is None or member.heartbeat.sent_ms < (record.ended_ms or 0) + SETTLED_MS:
        return None
    lease = lease_id(owner.incarnation, record.rid, record.attempt, side)
    listed = any(ref.lease == lease for ref in member.heartbeat.leases)
    return None if listed else Evidence.E2_ABSENT
