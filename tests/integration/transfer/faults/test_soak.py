"""Many transfers of all sizes, and many deaths: nothing that a process holds keeps growing.

`make soak-kv` runs the long form.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.transfer.peer import PAGES, Peer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

BATCH = 20
MOST_PAGES = 300
PER_TRANSFER = 1024
"""Bytes that memory may grow by, a transfer."""
SLACK = 4 << 20
"""Bytes that memory may grow by in all: allocators breathe."""
OTHERS = ("sem.", "sglang_")
"""Names of shared files that no transfer makes: locks of pools of processes, SGLang's loads."""
LONG = [pytest.mark.slow, pytest.mark.timeout(1800)]

rooms = itertools.count(55_000_000)


def config(lane: str) -> dict[str, Any]:
    """Return the settings of a peer; what is read in place is read by several threads."""
    shared = {"copy_threads": 2, "shared_copy_bytes": 16 << 10}
    return {"settings": {"lanes": [lane], "chunk_bytes": 64 << 10, **shared}}


def batch(prefill: Peer, decode: Peer, dice: random.Random) -> None:
    """Move some rooms of all sizes, from and into scattered pages."""
    asked = {
        str(next(rooms)): dice.sample(range(PAGES), dice.randint(1, MOST_PAGES))
        for _ in range(BATCH)
    }
    decode("fetch_all", source=prefill.address, rooms=asked)
    prefill("offer_all", rooms=asked)
    for peer, side in ((decode, "fetch"), (prefill, "offer")):
        assert peer("wait_all", side=side) == {"DONE": BATCH}


def shared_files() -> int:
    """Count what lies in the shared memory folder, without what tests beside this one put there."""
    return sum(not path.name.startswith(OTHERS) for path in Path("/dev/shm").iterdir())


def steady(peer: Peer) -> tuple[float, ...]:
    """Return what must be the same after as before, once it stands still."""
    before: tuple[float, ...] = ()
    while True:
        held = peer("resources")
        now = held["fds"], held["segments"], held["threads"], held["locked"]
        if now == before:
            return now
        # A port is closed just after its peer has left the list.
        before = now
        time.sleep(0.1)


@pytest.mark.parametrize("lane", ["cma", "sysv", "tcp"])
@pytest.mark.parametrize(("warm", "count"), [(200, 400), pytest.param(1000, 20_000, marks=LONG)])
def test_transfers_leave_nothing(
    start: Callable[..., Peer], lane: str, warm: int, count: int
) -> None:
    """UCX-08: after a warm-up, memory, descriptors, segments and locked memory stay as they are."""
    dice = random.Random(8)
    decode, prefill = start(**config(lane)), start(**config(lane))
    decode.begun(), prefill.begun()
    for _ in range(warm // BATCH):
        batch(prefill, decode, dice)
    files = shared_files()
    before = {peer.pid: (peer("resources"), steady(peer)) for peer in (decode, prefill)}
    for _ in range(count // BATCH):
        batch(prefill, decode, dice)
    for peer in (decode, prefill):
        held, same = before[peer.pid]
        grown = peer("resources")["rss"] - held["rss"]
        print(f"{lane}: {count} transfers, memory {grown >> 10:+d} KiB, {steady(peer)}")
        assert steady(peer) == same
        assert grown < SLACK + PER_TRANSFER * count * (count >= PER_TRANSFER)
        assert peer("stats")["malformed_messages"] == 0
    assert abs(shared_files() - files) <= 2


@pytest.mark.parametrize("lane", ["cma", "sysv", "tcp"])
@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=LONG)])
def test_deaths_of_peers_leave_nothing(start: Callable[..., Peer], lane: str, rounds: int) -> None:
    """UCX-08: a decode whose prefills die in mid-message, three at a time, holds what it held.

    Over tcp allocators take 16 MB more in the first 130 deaths, and then no more.
    """
    dice = random.Random(9)
    decode = start(**config(lane)).begun()
    held: list[tuple[float, ...]] = []
    memory: list[float] = []
    for _ in range(rounds):
        prefills = [start(**config(lane)) for _ in range(3)]
        for prefill in prefills:
            batch(prefill.begun(), decode, dice)
        asked = {next(rooms): prefill for prefill in prefills}
        for room, prefill in asked.items():
            pages = list(range(PAGES)) * 20
            decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=1)
            prefill("offer", room=room)
            prefill("push", room=room, pages=pages, first_page=0, last=True, row=0)
            decode("wait", side="fetch", room=room, state="MOVING")
        for prefill in prefills:
            prefill.kill()
        assert set(decode("wait_all", side="fetch")) <= {"FAILED", "DONE"}
        decode.until(lambda stats: not stats["peers"])
        held.append(steady(decode))
        memory.append(decode("resources")["rss"])
    # Whenever an allocator gives back, a single look is some megabytes lower than the one before.
    third = rounds // 3
    grown = int(max(memory[-third:]) - max(memory[-2 * third : -third]))
    print(f"{lane}: {3 * rounds} deaths, memory {grown >> 10:+d} KiB in the last third, {held[-1]}")
    assert set(held) == {held[0]}, held
    assert grown < SLACK
    assert decode("stats")["peers_lost"] == 3 * rounds
