"""A fleet is what its heartbeats say, and silence has a meaning."""

from libs.fleet import DEAD_S, SUSPECT_S, Fleet, Health
from libs.fleet.view import FORGET_S
from proto.ids import Incarnation, InstanceId
from proto.workers import Heartbeat, Role, WorkerState


def beat(
    incarnation: str = "a" * 16,
    sequence: int = 1,
    state: WorkerState = WorkerState.READY,
    *,
    sent_ms: int = 0,
) -> Heartbeat:
    return Heartbeat(
        role=Role.DECODE,
        instance=InstanceId("decode-00000000"),
        incarnation=Incarnation(incarnation),
        version="1",
        sequence=sequence,
        sent_ms=sent_ms,
        state=state,
    )


def test_silence_makes_suspect_and_then_dead() -> None:
    """A worker is usable while heard, suspect after 2.5 s, dead after 5 s."""
    fleet = Fleet()
    fleet.hear(beat(), 0.0)
    assert fleet.usable(SUSPECT_S - 0.01, Role.DECODE)
    assert not fleet.usable(SUSPECT_S, Role.DECODE)
    assert fleet.health(Incarnation("a" * 16), SUSPECT_S) is Health.SUSPECT
    assert fleet.health(Incarnation("a" * 16), DEAD_S) is Health.DEAD


def test_a_new_incarnation_buries_the_old_one_for_good() -> None:
    """After the heir was heard, a late heartbeat of the dead changes nothing."""
    fleet = Fleet()
    fleet.hear(beat("a" * 16, 5), 0.0)
    fleet.hear(beat("b" * 16, 1), 1.0)
    assert fleet.hear(beat("a" * 16, 6), 1.1) is None
    assert [m.heartbeat.incarnation for m in fleet.usable(1.2)] == ["b" * 16]
    assert fleet.health(Incarnation("a" * 16), 1.2) is Health.DEAD


def test_an_older_heartbeat_is_ignored() -> None:
    """Reordered heartbeats never take a worker back in time."""
    fleet = Fleet()
    fleet.hear(beat(sequence=2, state=WorkerState.DRAINING), 0.0)
    assert fleet.hear(beat(sequence=1), 0.1) is None
    assert not fleet.usable(0.2)


def test_a_shunned_worker_is_used_again_after_its_next_heartbeat() -> None:
    """A failed dispatch takes a worker out at once, and only until it is heard again."""
    fleet = Fleet()
    member = fleet.hear(beat(), 0.0)
    assert member
    fleet.shun(member.heartbeat.ref)
    assert not fleet.usable(0.1)
    fleet.hear(beat(sequence=2), 0.2)
    assert fleet.usable(0.3)


def test_a_worker_that_is_not_ready_gets_no_work() -> None:
    """Loading, draining and failed workers are listed and not usable."""
    for state in (WorkerState.LOADING, WorkerState.DRAINING, WorkerState.FAILED):
        fleet = Fleet()
        fleet.hear(beat(state=state), 0.0)
        assert list(fleet.members(Role.DECODE))
        assert not fleet.usable(0.1)


def test_the_table_is_bounded_by_forgetting() -> None:
    """Members and buried incarnations are dropped a minute after the last word."""
    fleet = Fleet()
    for n in range(100):
        fleet.hear(beat(f"{n:016x}"), float(n))
    fleet.forget(99 + FORGET_S + 1)
    assert not list(fleet.members())
    assert fleet.health(Incarnation(f"{5:016x}"), 200.0) is None


def test_who_hears_nobody_has_not_been_listening() -> None:
    """A break in which nobody was heard, not even the listener himself, starts the time anew."""
    fleet = Fleet()
    assert fleet.listening_s(9.0) == 0
    for second in range(6):
        fleet.hear(beat(sequence=second + 1), float(second))
    assert fleet.listening_s(5.5) == 5.5
    assert fleet.listening_s(5.0 + SUSPECT_S) == 0
    fleet.hear(beat("b" * 16), 20.0)
    assert fleet.listening_s(21.0) == 1.0


def test_a_late_copy_of_the_dead_does_not_bury_the_living() -> None:
    """Who began to listen after a restart is not misled by a heartbeat from before it."""
    fleet = Fleet()
    fleet.hear(beat("b" * 16, sent_ms=9_000), 0.0)
    assert fleet.hear(beat("a" * 16, 7, sent_ms=4_000), 0.1) is None
    assert [m.heartbeat.incarnation for m in fleet.usable(0.2)] == ["b" * 16]
    fleet.hear(beat("b" * 16, 2, sent_ms=10_000), 1.0)
    assert fleet.health(Incarnation("b" * 16), 1.0) is Health.ALIVE


def test_who_was_buried_by_mistake_comes_back() -> None:
    """An incarnation that has sent later than its supposed successor lives."""
    fleet = Fleet()
    fleet.hear(beat("b" * 16, sent_ms=9_000), 0.0)
    fleet.hear(beat("a" * 16, 7, sent_ms=4_000), DEAD_S)
    assert fleet.health(Incarnation("b" * 16), DEAD_S) is Health.DEAD
    assert fleet.hear(beat("b" * 16, 8, sent_ms=16_000), DEAD_S + 1)
    assert [m.heartbeat.incarnation for m in fleet.usable(DEAD_S + 1)] == ["b" * 16]
    assert fleet.health(Incarnation("a" * 16), DEAD_S + 1) is Health.DEAD


def test_a_clock_that_was_set_back_delays_a_successor_only_until_the_old_one_is_dead() -> None:
    """A new life with an earlier time is taken in once its predecessor has been silent."""
    fleet = Fleet()
    fleet.hear(beat("a" * 16, 9, sent_ms=9_000_000), 0.0)
    assert fleet.hear(beat("b" * 16, 1, sent_ms=1_000), 1.0) is None
    assert fleet.hear(beat("b" * 16, 6, sent_ms=6_000), DEAD_S)
    assert [m.heartbeat.incarnation for m in fleet.usable(DEAD_S)] == ["b" * 16]
