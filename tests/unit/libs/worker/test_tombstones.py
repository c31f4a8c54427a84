"""A cancel that comes before its start still wins."""

from libs.worker import Tombstones
from libs.worker.tombstones import TOMBSTONE_S
from proto.ids import RequestId

RID = RequestId("a" * 26)


def test_attempts_up_to_the_buried_one_are_refused() -> None:
    """Older and equal attempts are refused, newer ones are not."""
    graves = Tombstones()
    graves.bury(RID, 1, 0.0)
    assert [graves.refuses(RID, n) for n in range(3)] == [True, True, False]


def test_an_older_cancel_never_lowers_a_tombstone() -> None:
    """Cancels that arrive out of order leave the newest in force."""
    graves = Tombstones()
    graves.bury(RID, 2, 0.0)
    graves.bury(RID, 0, 1.0)
    assert graves.refuses(RID, 2)


def test_tombstones_expire_and_do_not_pile_up() -> None:
    """After two minutes the table gives its room back."""
    graves = Tombstones()
    for n in range(1000):
        graves.bury(RequestId(f"{n:026d}"), 0, float(n) / 1000)
    for n in range(1000):
        graves.bury(RequestId(f"z{n:025d}"), 0, TOMBSTONE_S + 2 + n / 1000)
    assert len(graves) == 1000
    assert not graves.refuses(RequestId(f"{0:026d}"), 0)
