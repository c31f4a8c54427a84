"""Whose leases a record waits for."""

import pytest

from proto.ids import Incarnation, InstanceId, Room, lease_id
from proto.ledger import Mode, Placement, RequestRecord, RequestState
from proto.workers import LeaseSide, Role, WorkerRef
from services.cleanup.endings import _cleaned
from tests.support.records import RID, record_of

TAKEN, GIVEN_BACK = Incarnation("1" * 16), Incarnation("2" * 16)


def record(attempt: int = 0) -> RequestRecord:
    decode = WorkerRef(role=Role.DECODE, instance=InstanceId("decode-0000000"), incarnation=TAKEN)
    place = Placement(
        attempt=attempt, mode=Mode.AGGREGATED, decode=decode, room=Room("1"), compat="c"
    )
    return record_of(RequestState.STREAMING, attempt, placement=place)


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
