from __future__ import annotations

import pytest

from libs.transfer.api import KvLayout, PagePool, TransferFailure
from libs.transfer.pages import PageStore
from libs.transfer.rooms import EarlyWant, OfferRoom, OfferTable
from libs.transfer.rooms.table import EARLY_LIMIT
from libs.transfer.wire import Want
from proto.errors import ErrorCode
from proto.ids import Room

STORE = PageStore(KvLayout((), (), 1, ""), PagePool([]), PagePool([]))
GONE = TransferFailure(ErrorCode.DECODE_LOST, "gone")


def offer(room: int) -> OfferRoom:
    """Return an offer."""
    return OfferRoom(STORE, Room(room), pushed=lambda _: None, aborted=lambda _: None)


def early(room: int, link: object = None, at: float = 0.0) -> EarlyWant:
    """Return a want."""
    want = Want(room=Room(room), pages=0, skip=0, bytes=0, row=False, tokens=0)
    return EarlyWant(want, link, at)


def test_they_find_each_other_in_either_order() -> None:
    """An offer finds the want that waits, a want finds the offer."""
    table = OfferTable()
    first, second = offer(1), early(2)
    assert table.open(first) is None
    assert table.ask(early(1)) is first
    assert table.ask(second) is None
    assert table.open(offer(2)) is second
    assert (len(table), table.early) == (2, 0)


def test_a_room_has_one_offer_and_one_want() -> None:
    """A second offer, and a second want before or after the match, are refused."""
    table, mine = OfferTable(), offer(1)
    table.open(mine)
    assert isinstance(table.open(offer(1)), TransferFailure)
    mine.link = object()
    assert isinstance(table.ask(early(1)), TransferFailure)
    table.ask(early(2))
    assert isinstance(table.ask(early(2)), TransferFailure)


def test_a_closed_room_tells_why() -> None:
    """Whoever comes late learns what became of the room, also if it ended well."""
    table = OfferTable()
    table.close(Room(1), GONE)
    table.close(Room(2), None)
    assert table.ask(early(1)) == table.open(offer(1)) == GONE
    used = table.ask(early(2))
    assert isinstance(used, TransferFailure)
    assert used.code is ErrorCode.KV_TRANSFER_FAILED


def test_wants_are_bounded() -> None:
    """The oldest want makes place for the newest and is handed out to be refused."""
    table = OfferTable()
    for room in range(EARLY_LIMIT):
        assert table.ask(early(room)) is None
    oldest = table.ask(early(EARLY_LIMIT))
    assert isinstance(oldest, EarlyWant)
    assert oldest.want.room == 0
    assert table.early == EARLY_LIMIT


def test_wants_expire() -> None:
    """Old wants are taken out, new ones stay."""
    table = OfferTable()
    table.ask(early(1, at=1.0))
    table.ask(early(2, at=2.0))
    assert [found.want.room for found in table.expired(1.5)] == [1]
    assert table.early == 1


@pytest.mark.parametrize("mine", [True, False])
def test_only_its_link_withdraws_a_want(mine: bool) -> None:
    """A stop counts only from the peer that asked."""
    table, link = OfferTable(), object()
    table.ask(early(1, link))
    assert table.withdraw(Room(1), link if mine else object(), GONE) is mine
    assert (table.open(offer(1)) == GONE) is mine


def test_a_lost_link_takes_its_wants_along() -> None:
    """Wants of a dead peer do not wait for an offer, others do."""
    table, link = OfferTable(), object()
    table.ask(early(1, link))
    table.ask(early(2, object()))
    table.forget(link, GONE)
    assert table.early == 1
    assert table.open(offer(1)) == GONE
