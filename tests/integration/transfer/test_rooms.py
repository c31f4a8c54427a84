"""Rooms between two processes over real UCX, on every lane."""

from __future__ import annotations

import random

import pytest

from tests.integration.transfer.peer import PAGE_BYTES, PAGES, ROW_BYTES

pytestmark = pytest.mark.integration

PAGE = sum(PAGE_BYTES)
ROW = sum(ROW_BYTES)


def scattered(count: int, seed: int) -> list[int]:
    """Return page numbers without order."""
    return random.Random(seed).sample(range(PAGES), count)


def offer(prefill, room: int, pages: list[int], pieces: int = 1, **more) -> None:
    """Offer a room and push its pages in pieces."""
    prefill("offer", room=room)
    cuts = [len(pages) * place // pieces for place in range(pieces + 1)]
    for place in range(pieces):
        part, last = pages[cuts[place] : cuts[place + 1]], place == pieces - 1
        row = 3 if last else None
        prefill("push", room=room, pages=part, first_page=cuts[place], last=last, row=row, **more)


@pytest.mark.parametrize("count", [0, 1, 7, 36, 37, 700])
def test_bytes_arrive_equal(pair, room: int, count: int) -> None:
    """Whatever the size and the order of pages, decode's pages and row become prefill's."""
    prefill, decode = pair
    source, target = scattered(count, 1), scattered(count, 2)
    decode("fetch", source=prefill.address, room=room, pages=target, row=5, tokens=count)
    offer(prefill, room, source)
    there, here = prefill("wait", side="offer", room=room), decode("wait", side="fetch", room=room)
    assert (there["state"], here["state"]) == ("DONE", "DONE")
    assert prefill("digest", pages=source, row=3) == decode("digest", pages=target, row=5)


def test_runs_of_pages_arrive_equal(pair, room: int) -> None:
    """Contiguous pages on one side and scattered ones on the other are no different."""
    prefill, decode = pair
    source, target = list(range(100, 400)), scattered(300, 4)
    decode("fetch", source=prefill.address, room=room, pages=target, row=1, tokens=300)
    offer(prefill, room, source, pieces=5)
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    assert prefill("digest", pages=source, row=3) == decode("digest", pages=target, row=1)


def test_reports_are_true_on_both_sides(pair, room: int) -> None:
    """Both sides report the lane, equal expected and moved bytes, chunks, and times that add up."""
    prefill, decode = pair
    pages = scattered(200, 5)
    decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=200)
    offer(prefill, room, pages)
    for peer, side in ((prefill, "offer"), (decode, "fetch")):
        report = peer("wait", side=side, room=room)["report"]
        assert report["expected_bytes"] == report["moved_bytes"] == 200 * PAGE + ROW
        assert report["tokens"] == 200
        assert report["chunks"] == 6
        assert [report["lane"]] == list(peer("stats")["by_lane"])
        assert 0 < report["wire_s"] <= report["total_s"]
        assert report["queue_s"] + report["wire_s"] <= report["total_s"] + 0.001
        # Pages as small as these are gathered and scattered on every lane.
        assert 0 < report["copy_s"] < report["total_s"]
        assert peer("reported", room=room) == [report]


def test_the_offer_may_come_first(pair, room: int) -> None:
    """A room offered and pushed whole before decode asks is sent when it does."""
    prefill, decode = pair
    pages = scattered(50, 6)
    offer(prefill, room, pages)
    assert prefill("state", side="offer", room=room) == "WAITING"
    decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=50)
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    assert prefill("wait", side="offer", room=room)["state"] == "DONE"


def test_the_want_may_come_first(pair, room: int) -> None:
    """A want that comes before its offer is remembered, and decode learns when it is matched."""
    prefill, decode = pair
    pages = scattered(50, 7)
    decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=50)
    while not decode("connect", source=prefill.address):
        pass
    assert decode("state", side="fetch", room=room) == "WAITING"
    prefill("offer", room=room)
    assert decode("wait", side="fetch", room=room, state="READY")["state"] == "READY"
    assert prefill("wait", side="offer", room=room, state="READY")["state"] == "READY"
    prefill("push", room=room, pages=pages, first_page=0, last=True, row=3)
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"


def test_pages_that_decode_holds_are_not_sent(pair, room: int) -> None:
    """With a prefix in decode's cache only the rest moves, even if prefill pushed everything."""
    prefill, decode = pair
    source, target = scattered(90, 8), scattered(60, 9)
    decode(
        "fetch", source=prefill.address, room=room, pages=target, row=2, tokens=90, skip_pages=30
    )
    offer(prefill, room, source, pieces=4)
    there, here = prefill("wait", side="offer", room=room), decode("wait", side="fetch", room=room)
    assert there["skip"] == 30
    assert here["report"]["moved_bytes"] == there["report"]["moved_bytes"] == 60 * PAGE + ROW
    assert prefill("digest", pages=source[30:], row=3) == decode("digest", pages=target, row=2)


def test_many_rooms_at_once(pair, room: int) -> None:
    """Twelve rooms share one link and none mixes with another."""
    prefill, decode = pair
    order = scattered(12 * 60, 10)
    parts = [order[place * 60 : place * 60 + 60] for place in range(12)]
    for place, pages in enumerate(parts):
        decode("fetch", source=prefill.address, room=room + place, pages=pages, row=0, tokens=60)
    for place, pages in reversed(list(enumerate(parts))):
        offer(prefill, room + place, pages, pieces=3)
    for place, pages in enumerate(parts):
        assert decode("wait", side="fetch", room=room + place)["state"] == "DONE"
        assert prefill("digest", pages=pages) == decode("digest", pages=pages)


def test_a_small_room_passes_a_big_one(pair, room: int) -> None:
    """A one-page room offered behind a long one is over before it."""
    prefill, decode = pair
    big = list(range(PAGES - 100)) * 20
    decode("fetch", source=prefill.address, room=room, pages=big, row=0, tokens=1)
    decode("fetch", source=prefill.address, room=room + 1, pages=[PAGES - 1], row=1, tokens=1)
    prefill("offer_all", rooms={room: big, room + 1: [PAGES - 1]})
    for place in (0, 1):
        assert decode("wait", side="fetch", room=room + place)["state"] == "DONE"
    for peer in pair:
        peer("reported", room=room)
        ended = [report["room"] for report in peer("reported", room=room + 1, others=True)]
        assert ended.index(room + 1) < ended.index(room)


def test_a_room_is_used_once(pair, room: int) -> None:
    """A second want, and a second offer, of a finished room fail with a type."""
    prefill, decode = pair
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    offer(prefill, room, [1])
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    decode("fetch", source=prefill.address, room=room, pages=[2], row=0, tokens=1)
    prefill("offer", room=room)
    for peer, side in ((decode, "fetch"), (prefill, "offer")):
        end = peer("wait", side=side, room=room)
        assert (end["state"], end["code"]) == ("FAILED", "kv_transfer_failed")
        assert "used before" in end["detail"]


@pytest.mark.parametrize(
    ("pushed", "phrase"), [(39, "ended at page 39"), (41, "pages up to 41")], ids=["few", "many"]
)
def test_a_wrong_number_of_pages_is_a_failure(pair, room: int, pushed: int, phrase: str) -> None:
    """If prefill has other pages than decode asked for, both sides fail and say so."""
    prefill, decode = pair
    decode("fetch", source=prefill.address, room=room, pages=list(range(40)), row=0, tokens=40)
    offer(prefill, room, list(range(pushed)), pieces=2)
    for peer, side in ((decode, "fetch"), (prefill, "offer")):
        end = peer("wait", side=side, room=room)
        assert (end["state"], end["code"]) == ("FAILED", "kv_transfer_failed")
        assert phrase in end["detail"]


def test_a_missing_row_is_a_failure(pair, room: int) -> None:
    """A room that ends without the row that decode needs fails on both sides."""
    prefill, decode = pair
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=[1], first_page=0, last=True)
    end = decode("wait", side="fetch", room=room)
    assert (end["code"], "row" in end["detail"]) == ("kv_transfer_failed", True)


def test_handles_that_change_are_announced(pair, room: int) -> None:
    """Both planes call `wake` during a room, and hold nothing open after it."""
    prefill, decode = pair
    before = [peer("stats")["wakes"] for peer in pair]
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    offer(prefill, room, [1])
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    assert prefill("wait", side="offer", room=room)["state"] == "DONE"
    for peer, wakes in zip(pair, before, strict=True):
        stats = peer.until(lambda stats, wakes=wakes: stats["wakes"] > wakes)
        stats = peer.until(lambda stats: not stats["open_rooms"])
        assert stats["malformed_messages"] == stats["peers_lost"] == 0


def test_rooms_of_many_peers_share_few_places(start, room: int) -> None:
    """One chunk may be under way from the engine: three decode engines all get theirs in turns."""
    settings = {"lanes": ["sysv"], "chunk_bytes": 64 << 10, "in_flight": 1}
    peers = [start(settings=settings) for _ in range(4)]
    prefill, *decodes = (peer.begun() for peer in peers)
    pages = list(range(PAGES)) * 4
    for place, decode in enumerate(decodes):
        decode("fetch", source=prefill.address, room=room + place, pages=pages, row=0, tokens=1)
        offer(prefill, room + place, pages)
    for place, decode in enumerate(decodes):
        end = decode("wait", side="fetch", room=room + place)
        assert end["state"] == "DONE"
        assert end["report"]["queue_s"] > 0
