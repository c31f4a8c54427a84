"""Whose leases a record waits for."""

import pytest

from proto.ids import Incarnation, InstanceId, RequestId, Room, TenantHash, lease_id
from proto.ledger import Mode, Placement, RequestRecord, RequestState, Sink
from proto.workers import LeaseSide, Role, WorkerRef
from services.cleanup.endings import _cleaned

RID = RequestId("a" * 26)
TAKEN, GIVEN_BACK = Incarnation("1" * 16), Incarnation("2" * 16)


def record(attempt: int = 0) -> RequestRecord:
    decode = WorkerRef(role=Role.DECODE, instance=InstanceId("decode-0000000"), incarnation=TAKEN)
    return RequestRecord(
        rid=RID,
        tenant=TenantHash("t"),
        model="m",
        state=RequestState.STREAMING,
        attempt=attempt,
        sink=Sink(gateway=InstanceId("gateway-000000"), incarnation=Incarnation("9" * 16)),
        digest="d",
        deadline_ms=0,
        created_ms=0,
        placement=Placement(
            attempt=attempt, mode=Mode.AGGREGATED, decode=decode, room=Room("1"), compat="c"
        ),
    )


@pytest.mark.parametrize(
    ("incarnation", "attempt", "clean"),
    [(TAKEN, 0, True), (GIVEN_BACK, 0, False), (TAKEN, 1, False)],
)
def test_a_lease_given_back_elsewhere_proves_nothing(
    incarnation: Incarnation, attempt: int, *, clean: bool
) -> None:
    """Only the lease of the newest place counts: another decode's reservation is another lease."""
    freed = {lease_id(incarnation, RID, attempt, LeaseSide.DST)}
    assert _cleaned(record(), set(freed)).dst is clean
