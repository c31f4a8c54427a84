"""Giving up a room in the middle of its transfer, over real UCX."""

from __future__ import annotations

import pytest

from tests.integration.transfer.peer import PAGES

pytestmark = pytest.mark.integration

LONG = list(range(PAGES)) * 40
WRITTEN = 0xEE
READ = 0xDD


def begin(prefill, decode, room: int) -> None:
    """Start a room that takes a while, and wait until it moves."""
    decode("fetch", source=prefill.address, room=room, pages=LONG, row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=LONG, first_page=0, last=True, row=0)
    moving = decode("wait", side="fetch", room=room, state="MOVING")
    assert moving["state"] == "MOVING"


def short_room(prefill, decode, room: int) -> str:
    """Move a small room and return its end, as proof that the link is well."""
    decode("fetch", source=prefill.address, room=room, pages=[0], row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=[0], first_page=0, last=True, row=0)
    return decode("wait", side="fetch", room=room)["state"]


def test_pages_are_never_written_after_decode_aborts(pair, room: int) -> None:
    """PD-07: pages reused right after `abort` keep their new bytes whatever is still under way."""
    prefill, decode = pair
    begin(prefill, decode, room)
    assert decode("abort", side="fetch", room=room, poison=WRITTEN)["state"] == "FAILED"
    end = prefill("wait", side="offer", room=room)
    assert (end["state"], end["code"]) == ("FAILED", "cancelled")
    assert "the test gives up" in end["detail"]
    # The next room comes after whatever was still under way on the link.
    decode("fetch", source=prefill.address, room=room + 1, pages=[], row=0, tokens=0)
    prefill("offer", room=room + 1)
    prefill("push", room=room + 1, pages=[], first_page=0, last=True, row=0)
    assert decode("wait", side="fetch", room=room + 1)["state"] == "DONE"
    assert decode("count", value=WRITTEN) == 3 * PAGES
    assert short_room(prefill, decode, room + 2) == "DONE"


def test_pages_are_never_read_after_prefill_aborts(pair, room: int) -> None:
    """Bytes written into prefill's pages right after `abort` are in no room that is done.

    On the lanes where prefill sends, they do not even reach a page of decode's.
    """
    prefill, decode = pair
    begin(prefill, decode, room)
    assert prefill("abort", side="offer", room=room, poison=READ)["state"] == "FAILED"
    end = decode("wait", side="fetch", room=room)
    assert (end["state"], end["code"]) == ("FAILED", "cancelled")
    assert end["report"]["moved_bytes"] < end["report"]["expected_bytes"]
    if "cma" not in decode("stats")["by_lane"]:
        assert decode("holding", value=READ) == 0
    assert short_room(prefill, decode, room + 1) == "DONE"


def test_an_abort_before_the_offer_reaches_it(pair, room: int) -> None:
    """An offer made after decode has given the room up fails at once, not after its timeout."""
    prefill, decode = pair
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    decode("abort", side="fetch", room=room)
    assert short_room(prefill, decode, room + 1) == "DONE"
    prefill("offer", room=room)
    end = prefill("wait", side="offer", room=room, timeout=10)
    assert (end["state"], end["code"]) == ("FAILED", "cancelled")


def test_an_abort_before_the_want_reaches_it(pair, room: int) -> None:
    """A want sent after prefill has given the room up is refused at once."""
    prefill, decode = pair
    prefill("offer", room=room)
    prefill("abort", side="offer", room=room)
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    end = decode("wait", side="fetch", room=room, timeout=10)
    assert (end["state"], end["code"]) == ("FAILED", "cancelled")


def test_an_abort_of_a_finished_room_changes_nothing(pair, room: int) -> None:
    """A final state stays what it is."""
    prefill, decode = pair
    assert short_room(prefill, decode, room) == "DONE"
    assert decode("abort", side="fetch", room=room)["state"] == "DONE"
    assert prefill("wait", side="offer", room=room)["state"] == "DONE"
    assert prefill("abort", side="offer", room=room)["state"] == "DONE"
