"""A peer that dies, stands still or is cut off in mid-transfer harms nobody else."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.integration.transfer.hosts.network import Network, network, why_no_network
from tests.integration.transfer.peer import PAGES, Peer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

LONG = list(range(PAGES)) * 60
TRANSFER_S = 1.0
PATIENCE_S = TRANSFER_S + 2.0
"""Within this time from the fault a room in transfer has failed."""
CODES = {"kill": {"prefill_lost"}, "stop": {"deadline"}, "cut": {"deadline", "prefill_lost"}}

rooms = itertools.count(77_000_000)


class Trio:
    """A decode and two prefill engines, one of which something will befall."""

    def __init__(self, lane: str, hosts: Network | None) -> None:
        self.lane = lane
        self.hosts = hosts
        self.peers: list[Peer] = []
        self.decode, self.victim, self.other = (self.make(host) for host in range(3))
        for peer in (self.decode, self.victim, self.other):
            peer.begun()

    def make(self, host: int) -> Peer:
        """Start an engine, on a host of its own if there are some."""
        settings = {
            "lanes": [self.lane],
            "chunk_bytes": 64 << 10,
            "transfer_timeout_s": TRANSFER_S,
            "connect_timeout_s": 2.0,
        }
        prefix: list[str] = []
        if self.hosts is not None:
            settings["interface"] = self.hosts.interface
            prefix = self.hosts.prefix(host)
        self.peers.append(Peer(settings=settings, prefix=prefix))
        return self.peers[-1]

    def strike(self, fault: str) -> None:
        """Let it happen."""
        if fault == "kill":
            self.victim.kill()
        elif fault == "stop":
            self.victim.signal(signal.SIGSTOP)
        elif self.hosts is not None:
            self.hosts.cut(1)

    def heal(self, fault: str) -> None:
        """Let the victim, or its successor, be there again."""
        if fault == "kill":
            self.victim = self.make(1).begun()
        elif fault == "stop":
            self.victim.signal(signal.SIGCONT)
        elif self.hosts is not None:
            self.hosts.mend(1)

    def begin(self, prefill: Peer, room: int, pages: list[int]) -> None:
        """Begin a transfer."""
        self.decode("fetch", source=prefill.address, room=room, pages=pages, row=0, tokens=1)
        prefill("offer", room=room)
        prefill("push", room=room, pages=pages, first_page=0, last=True, row=0)

    def move(self, prefill: Peer) -> float:
        """Move a small room, whole; return how long that took."""
        room, began = next(rooms), time.monotonic()
        self.begin(prefill, room, [1, 2, 3])
        end = self.decode("wait", side="fetch", room=room, timeout=10)
        assert end["state"] == "DONE", end
        return time.monotonic() - began

    def end(self) -> None:
        """End all."""
        for peer in self.peers:
            peer.end()


@pytest.fixture
def trio() -> Iterator[Callable[[str, bool], Trio]]:
    """Make a trio on a lane, on one host or on three."""
    with ExitStack() as stack:

        def make(lane: str, apart: bool) -> Trio:
            hosts = stack.enter_context(network(3)) if apart else None
            made = Trio(lane, hosts)
            stack.callback(made.end)
            return made

        yield make


@pytest.mark.parametrize(
    ("lane", "fault"),
    [
        ("cma", "kill"),
        ("cma", "stop"),
        ("sysv", "kill"),
        ("sysv", "stop"),
        ("tcp", "kill"),
        ("tcp", "stop"),
        ("tcp", "cut"),
    ],
)
def test_a_peer_that_is_gone_for_a_while(
    trio: Callable[[str, bool], Trio], lane: str, fault: str
) -> None:
    """UCX-05: its room fails in time, typed; the other peer's go on; when it is back it serves.

    Nobody is restarted but who was killed.
    """
    if fault == "cut" and (why := why_no_network()):
        pytest.skip(f"no network namespaces here: {why}")
    three = trio(lane, fault == "cut")
    three.move(three.other)
    room = next(rooms)
    three.begin(three.victim, room, LONG)
    assert three.decode("wait", side="fetch", room=room, state="MOVING")["state"] == "MOVING"
    three.strike(fault)
    struck = time.monotonic()
    moved: list[float] = []
    while (state := three.decode("state", side="fetch", room=room)) == "MOVING":
        moved.append(three.move(three.other))
        assert time.monotonic() - struck < PATIENCE_S + 5, "it never fails"
    failed = time.monotonic() - struck
    end = three.decode("wait", side="fetch", room=room)
    assert (state, end["code"] in CODES[fault]) == ("FAILED", True), end
    assert failed < PATIENCE_S
    moved += [three.move(three.other) for _ in range(5)]
    print(f"{lane} {fault}: {end['code']} after {failed:.2f} s, other rooms {max(moved):.3f} s")
    three.heal(fault)
    three.move(three.victim)
    three.decode.until(lambda stats: not stats["open_rooms"])
