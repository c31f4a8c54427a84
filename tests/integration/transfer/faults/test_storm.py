"""Random rooms, aborts, deaths and pauses among several engines: bytes are right, or refused."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.integration.transfer.faults.test_soak import steady
from tests.integration.transfer.peer import PAGES, Peer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TRANSFER_S = 2.0
MOST_ROOMS = 10
MOST_PAGES = 300
CODES = {"cancelled", "prefill_lost", "deadline"}
"""How a room may end that did not end well."""

numbers = itertools.count(33_000_000)


@dataclass
class Room:
    """One transfer under way."""

    number: int
    decode: Peer
    prefill: Peer
    source: list[int]
    target: list[int]


class Storm:
    """Some engines, the rooms between them, and which of decode's pages are free."""

    def __init__(self, make: Callable[[], Peer], dice: random.Random) -> None:
        self.make = make
        self.dice = dice
        self.decodes = [make() for _ in range(2)]
        self.prefills = [make() for _ in range(3)]
        for peer in (*self.decodes, *self.prefills):
            peer.begun()
        self.free = {peer.pid: list(range(PAGES)) for peer in self.decodes}
        self.rooms: list[Room] = []
        self.ends: Counter[str] = Counter()

    def meet(self) -> None:
        """Let every pair move a room, so that every link is up."""
        for decode in self.decodes:
            for prefill in self.prefills:
                self.begin(decode, prefill)
        self.finish()

    def begin(self, decode: Peer, prefill: Peer) -> None:
        """Begin a room into pages that nobody uses."""
        free = self.free[decode.pid]
        count = min(self.dice.randint(1, MOST_PAGES), len(free))
        target = [free.pop(self.dice.randrange(len(free))) for _ in range(count)]
        room = Room(next(numbers), decode, prefill, self.dice.sample(range(PAGES), count), target)
        decode("fetch", source=prefill.address, room=room.number, pages=target, row=0, tokens=1)
        prefill("offer", room=room.number)
        cut = self.dice.randint(0, count)
        for pages, first in ((room.source[:cut], 0), (room.source[cut:], cut)):
            last = first + len(pages) == count
            if pages or last:
                prefill(
                    "push",
                    room=room.number,
                    pages=pages,
                    first_page=first,
                    last=last,
                    row=0 if last else None,
                )
            if last:
                break
        self.rooms.append(room)

    def look(self) -> None:
        """Judge the rooms that are over, and free their pages."""
        for room in list(self.rooms):
            state = room.decode("state", side="fetch", room=room.number)
            if state == "DONE" and room.prefill in self.prefills:
                got = room.decode("digest", pages=room.target)
                assert got == room.prefill("digest", pages=room.source)
                self.over(room, state)
            elif state in {"DONE", "FAILED"}:
                end = room.decode("wait", side="fetch", room=room.number)
                assert state == "DONE" or end["code"] in CODES, end
                self.over(room, end["code"] or state)

    def abort(self) -> None:
        """Give a room up on either side; decode's pages are used again at once."""
        if not self.rooms:
            return
        room = self.dice.choice(self.rooms)
        if room.prefill in self.prefills and self.dice.random() < 0.3:
            room.prefill("abort", side="offer", room=room.number)
        else:
            room.decode("abort", side="fetch", room=room.number)
            self.over(room, "aborted")

    def kill(self) -> None:
        """Kill a prefill engine in whatever it does, and start its successor."""
        victim = self.dice.choice(self.prefills)
        self.prefills.remove(victim)
        victim.kill()
        self.prefills.append(self.make().begun())

    def pause(self) -> None:
        """Let a prefill engine stand still for a moment."""
        victim = self.dice.choice(self.prefills)
        victim.signal(signal.SIGSTOP)
        time.sleep(self.dice.random() * 0.3)
        victim.signal(signal.SIGCONT)

    def over(self, room: Room, how: str) -> None:
        """Forget a room."""
        self.rooms.remove(room)
        self.free[room.decode.pid] += room.target
        self.ends[how] += 1

    def finish(self) -> None:
        """Wait for the end of all rooms."""
        until = time.monotonic() + 20
        while self.rooms:
            assert time.monotonic() < until, self.rooms
            self.look()


@pytest.mark.parametrize(
    ("lane", "seconds", "seed"),
    [
        ("cma", 5, 1),
        ("sysv", 5, 2),
        ("tcp", 5, 3),
        *(
            pytest.param(lane, 240, seed, marks=[pytest.mark.slow, pytest.mark.timeout(400)])
            for seed, lane in enumerate(("cma", "sysv", "tcp"), 4)
        ),
    ],
)
def test_a_storm_leaves_right_bytes_only(
    start: Callable[..., Peer], lane: str, seconds: int, seed: int
) -> None:
    """PD-07, UCX-05: what arrives is what was sent, whatever befalls other rooms and engines.

    Pages of aborted rooms are used again at once; a dead prefill costs its own rooms only.
    """
    dice = random.Random(seed)
    config = {
        "settings": {
            "lanes": [lane],
            "chunk_bytes": 32 << 10,
            "transfer_timeout_s": TRANSFER_S,
            "connect_timeout_s": 2.0,
        }
    }
    storm = Storm(lambda: start(**config), dice)
    storm.meet()
    before = [steady(decode) for decode in storm.decodes]
    until = time.monotonic() + seconds
    deaths = 0
    while time.monotonic() < until:
        if len(storm.rooms) < MOST_ROOMS:
            storm.begin(dice.choice(storm.decodes), dice.choice(storm.prefills))
        storm.look()
        luck = dice.random()
        if luck < 0.1:
            storm.abort()
        elif luck < 0.11 and deaths < seconds:
            storm.kill()
            deaths += 1
        elif luck < 0.12:
            storm.pause()
    storm.finish()
    storm.meet()
    print(f"{lane}: {dict(storm.ends)}, {deaths} deaths")
    assert storm.ends["DONE"] > 20
    assert storm.ends["aborted"] > 2
    for decode, held in zip(storm.decodes, before, strict=True):
        decode.until(lambda stats: not stats["open_rooms"])
        assert steady(decode) == held
        stats = decode("stats")
        assert (stats["malformed_messages"], stats["corrupt_rooms"]) == (0, 0)
    for prefill in storm.prefills:
        prefill.until(lambda stats: not stats["open_rooms"])
