"""Closing a link in the middle of large messages, whatever the peer does, ends nobody else."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.integration.transfer.faults.test_soak import steady
from tests.integration.transfer.peer import PAGES, Peer

pytestmark = pytest.mark.integration

LONG = list(range(PAGES)) * 60
LANES = pytest.mark.parametrize("lane", ["sysv", "posix", "tcp"])
STUCK_S = 0.3
"""After which a sender has filled whatever takes bytes for a peer that stands still."""


def config(lane: str) -> dict[str, object]:
    """Return chunks that are larger than what shared memory or a socket holds."""
    return {"settings": {"lanes": [lane], "chunk_bytes": 16 << 20}}


def begin(prefill: Peer, decode: Peer, room: int) -> None:
    """Begin a room that takes long."""
    decode("fetch", source=prefill.address, room=room, pages=LONG, row=0, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=LONG, first_page=0, last=True, row=0)
    assert prefill("wait", side="offer", room=room, state="MOVING")["state"] == "MOVING"


@LANES
def test_a_decode_that_dies_with_full_queues_costs_its_rooms_only(
    start: Callable[..., Peer], room: int, lane: str
) -> None:
    """Prefill outlives peers that leave it with sends nobody takes, and holds what it held."""
    prefill = start(**config(lane)).begun()
    held: list[tuple[float, ...]] = []
    for death in range(3):
        decode = start(**config(lane)).begun()
        begin(prefill, decode, room + death)
        decode.signal(signal.SIGSTOP)
        time.sleep(STUCK_S)
        decode.kill()
        end = prefill("wait", side="offer", room=room + death, timeout=10)
        assert (end["state"], end["code"]) == ("FAILED", "decode_lost")
        prefill.until(lambda stats: not stats["peers"])
        held.append(steady(prefill))
    assert set(held) == {held[0]}, held


@LANES
def test_a_plane_closes_while_its_peer_stands_still(
    start: Callable[..., Peer], room: int, lane: str
) -> None:
    """A prefill whose decode takes nothing closes its plane and leaves nothing."""
    prefill, decode = start(**config(lane)), start(**config(lane))
    prefill.begun(), decode.begun()
    begin(prefill, decode, room)
    decode.signal(signal.SIGSTOP)
    try:
        time.sleep(STUCK_S)
        prefill("close")
        assert prefill("state", side="offer", room=room) == "FAILED"
        resources = prefill("resources")
        assert resources["threads"] == 1
    finally:
        decode.signal(signal.SIGCONT)


@LANES
def test_a_decode_closes_while_its_prefill_stands_still(
    start: Callable[..., Peer], room: int, lane: str
) -> None:
    """A decode that has half of a message closes its plane and leaves nothing."""
    prefill, decode = start(**config(lane)), start(**config(lane))
    prefill.begun(), decode.begun()
    begin(prefill, decode, room)
    prefill.signal(signal.SIGSTOP)
    try:
        decode("close")
        assert decode("state", side="fetch", room=room) == "FAILED"
        assert decode("resources")["threads"] == 1
    finally:
        prefill.signal(signal.SIGCONT)
