"""Bytes that change on their way are found before they are used, and the room fails for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.transfer.peer import Peer

pytestmark = pytest.mark.integration

PAGES = list(range(100, 400))
"""Nine chunks of 64 KiB."""
POISON = 0xA5


def two(start: Callable[..., Peer], lane: str, **settings) -> tuple[Peer, Peer]:
    """Start decode and prefill with small chunks."""
    config = {"settings": {"lanes": [lane], "chunk_bytes": 64 << 10, **settings}}
    decode, prefill = start(**config), start(**config)
    return decode.begun(), prefill.begun()


def move(prefill: Peer, decode: Peer, room: int, pages: list[int]) -> dict:
    """Move a room, and return its end at decode."""
    decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=pages, first_page=0, last=True, row=0)
    return decode("wait", side="fetch", room=room)


@pytest.mark.parametrize("lane", ["sysv", "tcp"])
@pytest.mark.parametrize("chunk", [0, 4])
def test_a_changed_bit_is_found_before_its_pages_are_written(
    start: Callable[..., Peer], room: int, lane: str, chunk: int
) -> None:
    """The room fails as corrupt on both sides; no page of that chunk, or after, is touched."""
    decode, prefill = two(start, lane)
    decode("paint", value=POISON)
    prefill("corrupt", chunks=[chunk])
    end = move(prefill, decode, room, PAGES)
    assert (end["state"], end["code"]) == ("FAILED", "transfer_corrupt")
    assert end["detail"] == f"chunk {chunk} is not what was sent"
    assert end["report"]["chunks"] == chunk
    sent = prefill("wait", side="offer", room=room)
    assert (sent["state"], sent["code"]) == ("FAILED", "transfer_corrupt")
    whole = chunk * ((64 << 10) // (384 + 384 + 1024))
    assert decode("count", value=POISON) == 3 * (4096 - whole)
    assert decode("stats")["corrupt_rooms"] == 1
    assert move(prefill, decode, room + 1, PAGES)["state"] == "DONE"
    assert decode("digest", pages=PAGES) == prefill("digest", pages=PAGES)


def test_samples_find_it_soon(start: Callable[..., Peer], room: int) -> None:
    """One chunk of eight is checked: a wire that changes all is found in each long room."""
    decode, prefill = two(start, "sysv", checksum_every=8)
    prefill("corrupt", chunks=list(range(1000)))
    for number in range(8):
        end = move(prefill, decode, room + number, PAGES)
        assert end["code"] == "transfer_corrupt"
        assert end["report"]["chunks"] == -(room + number) % 8


def test_nothing_is_checked_where_that_is_asked_for(start: Callable[..., Peer], room: int) -> None:
    """Without checksums a changed bit arrives: what the tests above see is the checksum's doing."""
    decode, prefill = two(start, "sysv", checksum_every=0)
    prefill("corrupt", chunks=[0])
    assert move(prefill, decode, room, PAGES)["state"] == "DONE"
    assert decode("digest", pages=PAGES) != prefill("digest", pages=PAGES)
