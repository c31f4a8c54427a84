"""A lease counts as freed on evidence only."""

from libs.fleet import DEAD_S, Fleet
from proto.ids import Incarnation, InstanceId, RequestId, lease_id
from proto.workers import Heartbeat, LeaseRef, LeaseSide, Role, WorkerState
from services.cleanup.watch import Evidence, LeaseWatch

RID = RequestId("a" * 26)
INC = Incarnation("1" * 16)
LEASE = LeaseRef(
    lease=lease_id(INC, RID, 0, "dst"),
    rid=RID,
    attempt=0,
    side=LeaseSide.DST,
    tokens=1,
    age_s=0.0,
)


def beat(sequence: int, *leases: LeaseRef, incarnation: Incarnation = INC) -> Heartbeat:
    return Heartbeat(
        role=Role.DECODE,
        instance=InstanceId("decode-00000000"),
        incarnation=incarnation,
        version="1",
        sequence=sequence,
        sent_ms=0,
        state=WorkerState.READY,
        leases=leases,
    )


def test_absence_from_one_heartbeat_proves_nothing() -> None:
    """Two consecutive inventories without the lease are needed."""
    watch = LeaseWatch()
    watch.hear(beat(1, LEASE), 0.0)
    assert watch.hear(beat(2), 1.0) == []
    ((freed, evidence),) = watch.hear(beat(3), 2.0)
    assert (freed.ref, evidence) == (LEASE, Evidence.E2_ABSENT)
    assert len(watch) == 0


def test_a_lease_that_comes_back_starts_anew() -> None:
    """An absence in between does not add up."""
    watch = LeaseWatch()
    watch.hear(beat(1, LEASE), 0.0)
    watch.hear(beat(2), 1.0)
    watch.hear(beat(3, LEASE), 2.0)
    assert watch.hear(beat(4), 3.0) == []


def test_the_inventory_of_another_incarnation_proves_nothing() -> None:
    """Only the incarnation that owns the memory can prove by absence."""
    watch = LeaseWatch()
    watch.hear(beat(1, LEASE), 0.0)
    for n in range(5):
        assert watch.hear(beat(n, incarnation=Incarnation("2" * 16)), 1.0) == []
    assert len(watch) == 1


def test_the_owners_word_frees_at_once() -> None:
    """`lease.ended` takes the lease out, once."""
    watch = LeaseWatch()
    watch.hear(beat(1, LEASE), 0.0)
    assert watch.ended(LEASE.lease, 1.0)
    assert watch.ended(LEASE.lease, 1.0) is None


def test_a_late_heartbeat_does_not_open_an_ended_lease_again() -> None:
    """An inventory that was sent before the owner's word proves nothing new."""
    watch = LeaseWatch()
    watch.hear(beat(1, LEASE), 0.0)
    watch.ended(LEASE.lease, 1.0)
    watch.hear(beat(2, LEASE), 1.1)
    assert len(watch) == 0


def test_a_dead_incarnation_frees_its_leases() -> None:
    """Memory returns with its process, and not before it is dead."""
    watch, fleet = LeaseWatch(), Fleet()
    fleet.hear(beat(1, LEASE), 0.0)
    watch.hear(beat(1, LEASE), 0.0)
    assert watch.sweep(fleet, DEAD_S - 0.1) == []
    ((freed, evidence),) = watch.sweep(fleet, DEAD_S)
    assert (freed.ref, evidence) == (LEASE, Evidence.E3_GONE)
