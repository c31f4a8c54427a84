"""A lease is opened once, ends once, and is listed in between."""

from libs.worker import LeaseTable
from proto.ids import Incarnation, RequestId
from proto.workers import LeaseSide

A = RequestId("a" * 26)
B = RequestId("b" * 26)


def test_opening_twice_gives_the_same_lease() -> None:
    """A repeated reserve does not take memory twice."""
    table = LeaseTable(Incarnation("1" * 16), LeaseSide.DST)
    first = table.open(A, 0, 100, 1.0)
    assert table.open(A, 0, 100, 2.0) is first
    assert (len(table), table.tokens) == (1, 100)


def test_ending_twice_tells_once() -> None:
    """Only the first end returns the lease, so `lease.ended` is told once."""
    table = LeaseTable(Incarnation("1" * 16), LeaseSide.DST)
    table.open(A, 0, 100, 1.0)
    assert table.end(A, 0)
    assert table.end(A, 0) is None
    assert (len(table), table.tokens) == (0, 0)


def test_an_abort_reaches_older_attempts_and_no_newer_one() -> None:
    """Leases of a request up to an attempt are found, newer ones and other requests are not."""
    table = LeaseTable(Incarnation("1" * 16), LeaseSide.SRC)
    for attempt in range(3):
        table.open(A, attempt, 1, 0.0)
    table.open(B, 0, 1, 0.0)
    assert {(x.rid, x.attempt) for x in table.of(A, 1)} == {(A, 0), (A, 1)}


def test_a_reference_names_incarnation_request_attempt_and_side() -> None:
    """The public name of a lease is unique over restarts, attempts and sides."""
    table = LeaseTable(Incarnation("1" * 16), LeaseSide.SRC)
    table.open(A, 3, 7, 10.0)
    (ref,) = table.refs(12.5)
    assert ref.lease == f"{'1' * 16}.{A}.3.src"
    assert (ref.age_s, ref.tokens, ref.closing) == (2.5, 7, False)
