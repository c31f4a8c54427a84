"""Both ends of a room against each other, without a transport."""

from __future__ import annotations

import itertools
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.transfer.api import KvLayout, PagePool, RoomState
from libs.transfer.crew import Crew
from libs.transfer.pages import PageStore
from libs.transfer.rooms import FetchRoom, OfferRoom
from libs.transfer.rooms import fetch as fetches
from libs.transfer.rooms import offer as offers
from libs.transfer.wire import HEADER_BYTES, SEAL_BYTES, unseal_chunk
from proto.errors import ErrorCode
from proto.ids import Room
from proto.kv import Lane

SIZES, ROWS, PAGES = (16, 48), (8,), 64
PAGE, ROW = sum(SIZES), sum(ROWS)
ROOM = Room(7)


class Side:
    """The memory of one engine."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.pages = [rng.integers(0, 256, (PAGES, size), np.uint8) for size in SIZES]
        self.rows = [rng.integers(0, 256, (4, size), np.uint8) for size in ROWS]
        layout = KvLayout(page_bytes=SIZES, row_bytes=ROWS, page_tokens=1, compat="")
        self.store = PageStore(layout, PagePool(self.pages), PagePool(self.rows))
        self.aborted: list[object] = []
        self.pushed: list[object] = []

    def fetch(self, pages: list[int], skip: int = 0, crew: Crew | None = None) -> FetchRoom:
        """Return decode's end."""
        return FetchRoom(
            self.store,
            ROOM,
            pages,
            row=1,
            tokens=len(pages),
            skip_pages=skip,
            aborted=self.aborted.append,
            crew=crew,
        )

    def offer(self) -> OfferRoom:
        """Return prefill's end."""
        return OfferRoom(self.store, ROOM, pushed=self.pushed.append, aborted=self.aborted.append)


def slab_for(pages: int) -> np.ndarray:
    """Return a slab that holds some pages and a row."""
    return np.zeros(HEADER_BYTES + pages * PAGE + ROW + SEAL_BYTES, np.uint8)


def run(offer: OfferRoom, fetch: FetchRoom, slab: np.ndarray, *, shared: bool = False) -> int:
    """Move chunks until there is none; return how many."""
    chunks = 0
    while (filled := offer.fill(slab, shared=shared)) is not None:
        chunks += 1
        header = unseal_chunk(filled.message)
        own = np.zeros_like(slab)
        own[: len(filled.message)] = filled.message
        assert fetch.accept(
            header,
            own,
            same_clock=True,
            pid=os.getpid(),
            shared=slab if header.shared else None,
        )
        offer.sent()
    return chunks


def linked(
    prefill: Side,
    decode: Side,
    pages: list[int],
    skip: int = 0,
    lane: Lane = Lane.SYSV,
    crew: Crew | None = None,
):
    """Return both ends, matched."""
    offer, fetch = prefill.offer(), decode.fetch(pages, skip, crew)
    assert offer.match(fetch.want(), lane)
    fetch.ready()
    return offer, fetch


@given(
    st.permutations(range(PAGES)),
    st.permutations(range(PAGES)),
    st.integers(0, PAGES),
    st.integers(0, 10),
    st.integers(1, 9),
    st.lists(st.integers(0, PAGES), max_size=4),
    st.sampled_from([(Lane.SYSV, 0), (Lane.CMA, 0), (Lane.CMA, 1 << 30)]),
    st.booleans(),
    st.sampled_from([0, 1 << 30]),
    st.sampled_from([1, 3]),
)
def test_any_cut_of_any_pages_arrives(  # noqa: PLR0917 - one argument a choice
    source: list[int],
    target: list[int],
    count: int,
    skip: int,
    per_slab: int,
    cuts: list[int],
    way: tuple[Lane, int],
    shared: bool,
    piece: int,
    threads: int,
) -> None:
    """However pages are scattered, pushed and cut into chunks, the wanted ones arrive in place."""
    prefill, decode = Side(1), Side(2)
    skip = min(skip, count)
    pages, places = source[:count], target[: count - skip]
    (lane, least), crew = way, Crew(threads, 1)
    offer, fetch = linked(prefill, decode, places, skip, lane, crew)
    slab = slab_for(per_slab)
    edges = sorted({0, count, *(min(cut, count) for cut in cuts)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offers, "LEAST_RUN", least)
        patch.setattr(offers, "MOST_SHORT", 0)
        patch.setattr(fetches, "LEAST_PIECE", piece)
        patch.setattr(fetches, "MOST_PIECES", 0)
        if lane is Lane.CMA:
            fetch.look_ahead(len(slab))
        for first, end in itertools.pairwise(edges):
            offer.push(pages[first:end], first_page=first, last=False)
            run(offer, fetch, slab, shared=shared)
        offer.push([], first_page=count, last=True, row=2)
        run(offer, fetch, slab, shared=shared)
    crew.close()
    assert (offer.state, fetch.state) == (RoomState.DONE, RoomState.DONE)
    for there, here in zip(prefill.pages, decode.pages, strict=True):
        assert (there[pages[skip:]] == here[places]).all()
    assert (prefill.rows[0][2] == decode.rows[0][1]).all()
    for report in (offer.report, fetch.report):
        assert report is not None
        assert report.moved_bytes == report.expected_bytes == len(places) * PAGE + ROW


@pytest.mark.parametrize("least", [0, 1 << 30])
def test_what_is_read_after_prefill_lets_go_is_thrown_away(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the cma lane a chunk whose room was given up before decode read it counts for nothing."""
    monkeypatch.setattr(offers, "LEAST_RUN", least)
    monkeypatch.setattr(offers, "MOST_SHORT", 0)
    prefill, decode = Side(1), Side(2)
    pages = list(range(40))
    offer, fetch = linked(prefill, decode, pages, lane=Lane.CMA)
    offer.push(pages, first_page=0, last=True, row=0)
    filled = offer.fill(slab_for(3))
    later = offer.fill(slab_for(3))
    assert filled is not None
    assert later is not None
    assert filled.uses_slab is (least > 0)
    offer.abort("reused")
    for chunk in (filled, later):
        header = unseal_chunk(chunk.message)
        assert not fetch.accept(header, chunk.message, same_clock=True, pid=os.getpid())
    assert fetch.state is RoomState.READY
    assert fetch.fail(ErrorCode.CANCELLED, "prefill says so")
    assert fetch.report is not None
    assert fetch.report.moved_bytes == 0


def test_a_room_is_done_when_its_last_chunk_is_over_not_when_that_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gathered last chunk leaves at once; what decode has yet to read in place stays leased."""
    monkeypatch.setattr(offers, "MOST_SHORT", 4)
    prefill, decode = Side(1), Side(2)
    offer, fetch = linked(prefill, decode, list(range(8)), lane=Lane.CMA)
    slab = slab_for(8)
    offer.push([1, 2], first_page=0, last=False)
    in_place = offer.fill(slab, shared=True)
    offer.push([9, 7, 5, 3, 11, 13], first_page=2, last=True, row=0)
    gathered = offer.fill(slab, shared=True)
    assert in_place is not None
    assert gathered is not None
    assert (in_place.leased, gathered.leased, gathered.last) == (True, False, True)
    offer.sent()
    assert offer.state is RoomState.MOVING
    for chunk in (in_place, gathered):
        header = unseal_chunk(chunk.message)
        assert fetch.accept(header, chunk.message, same_clock=True, pid=os.getpid(), shared=slab)
    assert fetch.state is RoomState.DONE
    offer.sent()
    assert offer.state is RoomState.DONE


@pytest.mark.parametrize(("lane", "shares"), [(Lane.SYSV, (0, 16, 8)), (Lane.CMA, (0, 16, 2))])
def test_chunks_that_are_read_in_place_are_checked_less_often(
    lane: Lane, shares: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None, all or one of two are asked for; on the cma lane it is one of eight in the end."""
    monkeypatch.setattr(offers, "LEAST_RUN", 0)
    monkeypatch.setattr(offers, "LONG", 1)
    side, found = Side(1), []
    for every in range(3):
        offer = OfferRoom(
            side.store,
            ROOM,
            pushed=side.pushed.append,
            aborted=side.aborted.append,
            checksum_every=every,
        )
        assert offer.match(Side(2).fetch(list(range(16))).want(), lane)
        offer.push(list(range(16)), first_page=0, last=True, row=0)
        chunks = [offer.fill(slab_for(1)) for _ in range(16)]
        found.append(sum(unseal_chunk(chunk.message).checked for chunk in chunks if chunk))
    assert tuple(found) == shares


def test_what_was_looked_up_before_the_ask_is_what_is_sent() -> None:
    """A prompt that is ready before decode asks arrives whole, and so does one half of it."""
    for skip in (0, 3):
        prefill, decode = Side(1), Side(2)
        offer, fetch = prefill.offer(), decode.fetch([9, 4, 5][: 6 - skip], skip)
        pages = [7, 8, 2, 1, 5, 6][-3 - skip :]
        offer.push(pages, first_page=0, last=True, row=2)
        slab = slab_for(6)
        offer.look_ahead(len(slab))
        assert offer.match(fetch.want(), Lane.CMA)
        assert run(offer, fetch, slab) == 1
        assert fetch.state is RoomState.DONE
        for there, here in zip(prefill.pages, decode.pages, strict=True):
            assert (there[pages[skip:]] == here[[9, 4, 5]]).all()


@pytest.mark.parametrize("lane", [Lane.SYSV, Lane.CMA])
def test_a_bit_that_changes_in_shared_memory_is_found(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checked chunk in a slab that both share is compared before it touches a page."""
    monkeypatch.setattr(offers, "MOST_SHORT", 0)
    prefill, decode = Side(1), Side(2)
    offer = OfferRoom(
        prefill.store,
        ROOM,
        pushed=prefill.pushed.append,
        aborted=prefill.aborted.append,
        checksum_every=1,
    )
    fetch = decode.fetch([1, 2])
    assert offer.match(fetch.want(), lane)
    offer.push([4, 5], first_page=0, last=True, row=0)
    slab, before = slab_for(2), [buffer.copy() for buffer in decode.pages]
    filled = offer.fill(slab, shared=True)
    assert filled is not None
    assert not filled.leased
    slab[3] ^= 1
    header = unseal_chunk(filled.message)
    assert fetch.accept(header, filled.message, same_clock=True, shared=slab)
    assert fetch.failure is not None
    assert fetch.failure.code is ErrorCode.TRANSFER_CORRUPT
    for old, new in zip(before, decode.pages, strict=True):
        assert (old == new).all()


def test_a_room_walks_through_its_states() -> None:
    """WAITING, READY with a match, MOVING with a chunk, DONE with the last one sent."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = prefill.offer(), decode.fetch([1, 2])
    assert (offer.state, fetch.state) == (RoomState.WAITING, RoomState.WAITING)
    offer.match(fetch.want(), Lane.TCP)
    fetch.ready()
    assert (offer.state, fetch.state) == (RoomState.READY, RoomState.READY)
    offer.push([3], first_page=0, last=False)
    slab = slab_for(2)
    run(offer, fetch, slab)
    assert (offer.state, fetch.state) == (RoomState.MOVING, RoomState.MOVING)
    offer.push([4], first_page=1, last=True, row=0)
    filled = offer.fill(slab)
    assert filled is not None
    assert offer.state is RoomState.MOVING
    offer.sent()
    assert offer.state is RoomState.DONE


def test_one_small_push_is_one_chunk() -> None:
    """Pages and row that fit into a slab travel together."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = linked(prefill, decode, [1, 2, 3])
    offer.push([4, 5, 6], first_page=0, last=True, row=0)
    assert run(offer, fetch, slab_for(3)) == 1


def test_a_late_chunk_touches_nothing() -> None:
    """A chunk that arrives after `abort` is not accepted and no byte changes."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = linked(prefill, decode, [1, 2, 3])
    offer.push([4, 5, 6], first_page=0, last=True, row=0)
    slab = slab_for(3)
    assert offer.fill(slab)
    fetch.abort("reused")
    before = [buffer.copy() for buffer in (*decode.pages, *decode.rows)]
    assert not fetch.accept(unseal_chunk(slab), slab, same_clock=True)
    for old, new in zip(before, (*decode.pages, *decode.rows), strict=True):
        assert (old == new).all()
    assert fetch.failure is not None
    assert fetch.failure.code is ErrorCode.CANCELLED
    assert decode.aborted == [fetch]


def test_an_aborted_offer_is_not_read() -> None:
    """After `abort` no chunk can be made."""
    prefill, decode = Side(1), Side(2)
    offer, _ = linked(prefill, decode, [1, 2])
    offer.push([4, 5], first_page=0, last=True, row=0)
    offer.abort("reused")
    assert offer.fill(slab_for(2)) is None
    assert prefill.aborted == [offer]


@pytest.mark.parametrize("end", ["fetch", "offer"])
def test_abort_waits_for_a_copy_under_way(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`abort` returns only after the copy that was running, so pages are quiet afterwards."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = linked(prefill, decode, [1, 2])
    offer.push([4, 5], first_page=0, last=True, row=0)
    slab = slab_for(2)
    inside, leave, aborted = threading.Event(), threading.Event(), threading.Event()

    def slow(original):
        def copy(*arguments):
            inside.set()
            assert leave.wait(5)
            assert not aborted.is_set()
            return original(*arguments)

        return copy

    if end == "fetch":
        offer.fill(slab)
        side, room, name = decode, fetch, "scatter_pages"
        work = lambda: fetch.accept(unseal_chunk(slab), slab, same_clock=True)  # noqa: E731
    else:
        side, room, name = prefill, offer, "gather_pages"
        work = lambda: offer.fill(slab)  # noqa: E731
    monkeypatch.setattr(side.store, name, slow(getattr(side.store, name)))
    copier = threading.Thread(target=work)
    copier.start()
    assert inside.wait(5)

    def abort() -> None:
        room.abort("reused")
        aborted.set()

    stopper = threading.Thread(target=abort)
    stopper.start()
    assert not aborted.wait(0.05)
    leave.set()
    copier.join(5)
    stopper.join(5)
    assert aborted.is_set()


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"sequence": 1}, "chunk 1 arrived, 0 was due"),
        ({"first_page": 1}, "page 1, 0 was due"),
        ({"pages": 5}, "more pages"),
        ({"row_bytes": 0}, "bytes of rows"),
        ({"last": False}, "bytes of rows"),
        ({"payload": 1}, "1 bytes for 2 pages"),
    ],
)
def test_a_chunk_that_does_not_fit_fails_the_room(change: dict[str, int], phrase: str) -> None:
    """Byte accounting is strict: every fact of a chunk is checked before a byte is written."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = linked(prefill, decode, [1, 2])
    offer.push([4, 5], first_page=0, last=True, row=0)
    slab = slab_for(2)
    offer.fill(slab)
    before = [buffer.copy() for buffer in decode.pages]
    assert fetch.accept(replace(unseal_chunk(slab), **change), slab, same_clock=True)
    assert fetch.failure is not None
    assert fetch.failure.code is ErrorCode.KV_TRANSFER_FAILED
    assert phrase in fetch.failure.detail
    for old, new in zip(before, decode.pages, strict=True):
        assert (old == new).all()


def test_a_room_that_ends_early_fails() -> None:
    """A last chunk before all pages have arrived is a failure, not a success with fewer bytes."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = linked(prefill, decode, [1, 2, 3])
    other = prefill.offer()
    other.match(decode.fetch([1, 2]).want(), Lane.SYSV)
    other.push([4, 5], first_page=0, last=True, row=0)
    slab = slab_for(2)
    other.fill(slab)
    assert fetch.accept(unseal_chunk(slab), slab, same_clock=True)
    assert fetch.state is RoomState.FAILED
    assert fetch.failure is not None
    assert "were expected" in fetch.failure.detail
    assert offer.state is RoomState.READY


def test_expectations_that_differ_fail_the_match() -> None:
    """If decode expects other bytes than prefill would send, nothing is sent."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = prefill.offer(), decode.fetch([1])
    want = fetch.want()
    fields = {name: getattr(want, name) for name in want.__struct_fields__}
    assert not offer.match(type(want)(**{**fields, "bytes": 1}), Lane.SYSV)
    assert offer.failure is not None
    assert "decode expects 1 bytes" in offer.failure.detail


def test_pushes_must_follow_each_other() -> None:
    """A gap, or a push after the last one, is an error of the caller."""
    offer = Side(1).offer()
    offer.push([1, 2], first_page=0, last=False)
    with pytest.raises(ValueError, match="does not follow"):
        offer.push([3], first_page=3, last=False)
    offer.push([3], first_page=2, last=True, row=0)
    with pytest.raises(ValueError, match="after the last"):
        offer.push([4], first_page=3, last=False)


def test_pages_that_were_never_pushed_fail_the_room() -> None:
    """If prefill starts after the page that decode needs first, the room fails."""
    prefill, decode = Side(1), Side(2)
    offer, _ = linked(prefill, decode, [1, 2, 3])
    offer.push([4, 5], first_page=1, last=True, row=0)
    assert offer.fill(slab_for(3)) is None
    assert offer.failure is not None
    assert "decode needs them from 0 on" in offer.failure.detail


@pytest.mark.parametrize(
    ("moved", "now", "late"),
    [(False, 4.0, None), (False, 6.0, "within 5 s"), (True, 1.0, None), (True, 3.0, "within 2 s")],
)
def test_rooms_fall_due(moved: bool, now: float, late: str | None) -> None:
    """A waiting room has the want's time, a moving one the transfer's between two chunks."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = prefill.offer(), decode.fetch([1, 2])
    if moved:
        offer.match(fetch.want(), Lane.SYSV)
        fetch.ready()
        offer.push([4, 5], first_page=0, last=True, row=0)
        slab = slab_for(1)
        offer.fill(slab)
        fetch.accept(unseal_chunk(slab), slab, same_clock=True)
    at = time.monotonic() + now
    for room in (offer, fetch):
        found = room.overdue(at, 5.0, 2.0)
        assert found == late if late is None else late in str(found)


def test_a_ready_room_may_take_as_long_as_it_computes() -> None:
    """Between the match and the first push there is no deadline of the plane's own."""
    prefill, decode = Side(1), Side(2)
    offer, fetch = linked(prefill, decode, [1])
    for room in (offer, fetch):
        assert room.overdue(1e9, 5.0, 2.0) is None
