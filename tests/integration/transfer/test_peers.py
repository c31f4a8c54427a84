"""Peers that die, come back, do not fit, or do not answer, over real UCX."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.world.sockets import sever
from tests.integration.transfer.peer import PAGES, Peer

pytestmark = pytest.mark.integration

LONG = list(range(PAGES)) * 60
LANES = pytest.mark.parametrize("lane", ["cma", "sysv", "tcp"])


def settings(lane: str, **more) -> dict[str, object]:
    """Return small chunks on one lane."""
    return {"lanes": [lane], "chunk_bytes": 64 << 10, **more}


def move(prefill: Peer, decode: Peer, room: int, pages: list[int], first: int = 0) -> None:
    """Begin a room."""
    decode("fetch", source=prefill.address, room=room, pages=pages, row=first, tokens=1)
    prefill("offer", room=room)
    prefill("push", room=room, pages=pages, first_page=0, last=True, row=first)


def segments(creators: set[int]) -> int:
    """Count the System V segments that these processes have left on the machine."""
    rows = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return sum(int(row.split()[4]) in creators for row in rows)


@LANES
def test_a_killed_prefill_fails_its_rooms_only(
    start: Callable[..., Peer], room: int, lane: str
) -> None:
    """PD-04: rooms of a killed prefill fail as lost; another prefill's go on."""
    config = {"settings": settings(lane)}
    decode, victim, other = start(**config), start(**config), start(**config)
    decode.begun(), victim.begun(), other.begun()
    move(victim, decode, room, LONG)
    decode("fetch", source=victim.address, room=room + 1, pages=[1], row=0, tokens=1)
    assert decode("wait", side="fetch", room=room, state="MOVING")["state"] == "MOVING"
    victim.kill()
    for place in (0, 1):
        end = decode("wait", side="fetch", room=room + place, timeout=10)
        assert (end["state"], end["code"]) == ("FAILED", "prefill_lost")
        print(f"{lane}: death noticed by decode after {end['waited']:.3f} s")
    move(other, decode, room + 2, [1, 2, 3])
    assert decode("wait", side="fetch", room=room + 2)["state"] == "DONE"
    stats = decode.until(lambda stats: not stats["open_rooms"])
    assert (stats["peers"], stats["peers_lost"]) == (1, 1)


@LANES
def test_a_killed_decode_fails_its_rooms_only(
    start: Callable[..., Peer], room: int, lane: str
) -> None:
    """Rooms of a killed decode fail as lost; another decode's go on."""
    config = {"settings": settings(lane)}
    prefill, victim, other = start(**config), start(**config), start(**config)
    prefill.begun(), victim.begun(), other.begun()
    move(prefill, victim, room, LONG)
    assert prefill("wait", side="offer", room=room, state="MOVING")["state"] == "MOVING"
    victim.kill()
    end = prefill("wait", side="offer", room=room, timeout=10)
    assert (end["state"], end["code"]) == ("FAILED", "decode_lost")
    print(f"{lane}: death noticed by prefill after {end['waited']:.3f} s")
    move(prefill, other, room + 1, [1, 2, 3])
    assert other("wait", side="fetch", room=room + 1)["state"] == "DONE"
    assert prefill("wait", side="offer", room=room + 1)["state"] == "DONE"
    stats = prefill.until(lambda stats: not stats["open_rooms"])
    assert (stats["peers"], stats["peers_lost"]) == (1, 1)


def test_an_offer_fails_with_its_asker_before_it_is_asked_for(
    start: Callable[..., Peer], room: int
) -> None:
    """What was computed ahead for a decode engine is free again when that engine is lost."""
    prefill, decode = start(), start()
    prefill.begun(), decode.begun()
    assert not prefill("has_link", decode=decode.incarnation)
    move(prefill, decode, room, [1])
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    assert prefill("has_link", decode=decode.incarnation)
    for place, asker in enumerate((decode.incarnation, "another")):
        prefill("offer", room=room + 1 + place, asker=asker)
        prefill("push", room=room + 1 + place, pages=[1], first_page=0, last=True, row=0)
    decode.kill()
    end = prefill("wait", side="offer", room=room + 1, timeout=10)
    assert (end["state"], end["code"]) == ("FAILED", "decode_lost")
    assert prefill("state", side="offer", room=room + 2) == "WAITING"
    assert not prefill("has_link", decode=decode.incarnation)


@LANES
def test_deaths_leave_nothing_behind(start: Callable[..., Peer], room: int, lane: str) -> None:
    """After each double death in mid-transfer the survivor holds what it held after the first."""
    config = {"settings": settings(lane)}
    survivor = start(**config).begun()
    held: list[tuple[float, ...]] = []
    dead: set[int] = set()
    for death in range(3):
        prefill, decode = start(**config), start(**config)
        prefill.begun(), decode.begun()
        move(prefill, survivor, room + 2 * death, LONG)
        move(survivor, decode, room + 2 * death + 1, LONG)
        survivor("wait", side="fetch", room=room + 2 * death, state="MOVING")
        survivor("wait", side="offer", room=room + 2 * death + 1, state="MOVING")
        dead |= {prefill.pid, decode.pid}
        prefill.kill()
        decode.kill()
        lost = survivor("wait", side="fetch", room=room + 2 * death, timeout=10)
        assert lost["code"] == "prefill_lost"
        lost = survivor("wait", side="offer", room=room + 2 * death + 1, timeout=10)
        assert lost["code"] == "decode_lost"
        resources = survivor("resources")
        held.append((resources["fds"], resources["segments"], resources["threads"]))
    print(f"{lane}: fds, segments, threads after each death: {held}")
    assert set(held[1:]) == {held[0]}
    assert segments(dead) == 0


@LANES
def test_a_new_incarnation_is_served(start: Callable[..., Peer], room: int, lane: str) -> None:
    """PD-05: after a prefill is killed, its successor serves the same decode engine."""
    config = {"settings": settings(lane)}
    decode, first = start(**config), start(**config)
    decode.begun(), first.begun()
    move(first, decode, room, [1])
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"
    first.kill()
    second = start(**config).begun()
    move(second, decode, room + 1, [5, 4])
    assert decode("wait", side="fetch", room=room + 1)["state"] == "DONE"
    decode("fetch", source=first.address, room=room + 2, pages=[1], row=0, tokens=1)
    end = decode("wait", side="fetch", room=room + 2, timeout=10)
    assert (end["state"], end["code"]) == ("FAILED", "prefill_lost")


def test_a_closed_plane_takes_leave(start: Callable[..., Peer], room: int) -> None:
    """Closing a plane fails its peers' rooms at once, and is not counted as a loss."""
    decode, prefill = start(), start()
    decode.begun(), prefill.begun()
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    prefill("offer", room=room)
    assert decode("wait", side="fetch", room=room, state="READY")["state"] == "READY"
    prefill("close")
    assert prefill("state", side="offer", room=room) == "FAILED"
    end = decode("wait", side="fetch", room=room, timeout=10)
    assert (end["state"], end["code"]) == ("FAILED", "prefill_lost")
    assert decode("stats")["peers_lost"] == 0
    resources = prefill("resources")
    assert (resources["segments"], resources["threads"]) == (0, 1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"page_bytes": (384, 384, 512)}, "page_bytes[2]: 1024 in prefill, 512 in decode"),
        ({"page_bytes": (384, 384)}, "page_bytes: 3 buffers in prefill, 2 in decode"),
        ({"row_bytes": (64,)}, "row_bytes: 2 buffers in prefill, 1 in decode"),
        ({"page_tokens": 16}, "page_tokens: 1 in prefill, 16 in decode"),
        ({"compat": "other"}, "compat: card in prefill, other in decode"),
    ],
    ids=["page-size", "buffers", "rows", "page-tokens", "card"],
)
def test_another_layout_is_refused(
    fitting: dict[str, Peer], room: int, change: dict[str, object], field: str
) -> None:
    """A decode engine with another layout is refused with the field that differs."""
    lane = "tcp" if "compat" in change else "sysv"
    prefill = fitting[lane]
    decode = Peer(settings=settings(lane), **change).begun()
    try:
        decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
        end = decode("wait", side="fetch", room=room, timeout=10)
        assert (end["state"], end["code"], end["detail"]) == ("FAILED", "version_mismatch", field)
        assert decode("stats")["peers"] == 0
    finally:
        decode.end()


@pytest.fixture(scope="module")
def fitting():
    """Return one prefill engine a lane that others do not fit."""
    peers = {lane: Peer(settings=settings(lane)) for lane in ("sysv", "tcp")}
    for peer in peers.values():
        peer.begun()
    yield peers
    for peer in peers.values():
        peer.end()


def test_a_want_without_an_offer_expires(start: Callable[..., Peer], room: int) -> None:
    """A fetch that is never offered and an offer that is never fetched fail as late."""
    config = {"settings": settings("sysv", want_timeout_s=0.5)}
    decode, prefill = start(**config), start(**config)
    decode.begun(), prefill.begun()
    decode("fetch", source=prefill.address, room=room, pages=[1], row=0, tokens=1)
    prefill("offer", room=room + 1)
    for peer, side, place in ((decode, "fetch", 0), (prefill, "offer", 1)):
        end = peer("wait", side=side, room=room + place, timeout=10)
        assert (end["state"], end["code"]) == ("FAILED", "deadline")
        assert "within 0.5 s" in end["detail"]


@LANES
def test_a_silent_peer_is_given_up(start: Callable[..., Peer], room: int, lane: str) -> None:
    """UCX-05: a stopped process: rooms in transfer and new links end in time, typed."""
    limits = {"transfer_timeout_s": 0.6, "connect_timeout_s": 0.6}
    config = {"settings": settings(lane, **limits)}
    decode, prefill, late = start(**config), start(**config), start(**config)
    decode.begun(), prefill.begun(), late.begun()
    move(prefill, decode, room, LONG)
    assert decode("wait", side="fetch", room=room, state="MOVING")["state"] == "MOVING"
    prefill.signal(signal.SIGSTOP)
    try:
        end = decode("wait", side="fetch", room=room, timeout=10)
        assert (end["state"], end["code"]) == ("FAILED", "deadline")
        late("fetch", source=prefill.address, room=room + 1, pages=[1], row=0, tokens=1)
        end = late("wait", side="fetch", room=room + 1, timeout=10)
        assert (end["state"], end["code"]) == ("FAILED", "prefill_lost")
        assert "no answer" in end["detail"]
    finally:
        prefill.signal(signal.SIGCONT)


@LANES
def test_strangers_are_dropped_and_counted(
    start: Callable[..., Peer], room: int, lane: str
) -> None:
    """Noise, empty, oversized and misplaced messages at the door leave a plane at work."""
    config = {"settings": settings(lane)}
    prefill, decode = start(**config), start(**config)
    prefill.begun(), decode.begun()
    nonsense = decode("pester", source=prefill.address, lane=lane, worker="AA==")
    prefill.until(lambda stats: stats["malformed_messages"] + stats["strangers"] == nonsense)
    move(prefill, decode, room, [1])
    assert decode("wait", side="fetch", room=room)["state"] == "DONE"


def test_a_pair_that_is_cut_meets_again(start: Callable[..., Peer], room: int) -> None:
    """Connections that are reset in mid-transfer: typed on both sides, then a new link.

    Both engines live on, another pair of the same engine does not notice, and nothing is held.
    """
    config = {"settings": settings("tcp", credits=2)}
    decode, prefill, other = start(**config), start(**config), start(**config)
    decode.begun(), prefill.begun(), other.begun()
    for number in range(0, 30, 10):
        move(prefill, decode, room + number, LONG, 0)
        move(other, decode, room + number + 1, LONG, 1)
        for place in (0, 1):
            decode("wait", side="fetch", room=room + number + place, state="MOVING")
        try:
            assert sever(decode.pid, prefill.pid) > 0
        except PermissionError as error:
            pytest.skip(str(error))
        lost = decode("wait", side="fetch", room=room + number, timeout=10)
        assert (lost["state"], lost["code"]) == ("FAILED", "prefill_lost")
        sent = prefill("wait", side="offer", room=room + number, timeout=10)
        assert (sent["state"], sent["code"]) == ("FAILED", "decode_lost")
        assert decode("wait", side="fetch", room=room + number + 1)["state"] == "DONE"
        move(prefill, decode, room + number + 2, [1, 2, 3], 2)
        assert decode("wait", side="fetch", room=room + number + 2)["state"] == "DONE"
        assert decode("digest", pages=[1, 2, 3]) == prefill("digest", pages=[1, 2, 3])
    for peer in (decode, prefill):
        assert peer.until(lambda stats: not stats["open_rooms"])["peers_lost"] == 3
