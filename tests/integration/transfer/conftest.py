"""Engine processes for the transfer tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.integration.transfer.peer import Peer

_rooms = itertools.count(10_001)


@pytest.fixture
def room() -> int:
    """Return a room that no other test uses."""
    return next(_rooms) << 8


@pytest.fixture
def start() -> Iterator[Callable[..., Peer]]:
    """Start engine processes that end with the test; `begun()` waits for one."""
    peers: list[Peer] = []

    def make(**config) -> Peer:
        peers.append(Peer(**config))
        return peers[-1]

    yield make
    for peer in peers:
        peer.end()


@pytest.fixture(scope="module", params=["cma", "cma shared", "sysv", "posix", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Peer, Peer]]:
    """Return a prefill and a decode process that only have one lane, with small chunks.

    Where the copies are shared, several threads read each of them.
    """
    lane, *shared = request.param.split()
    settings = {"lanes": [lane], "chunk_bytes": 64 << 10, "credits": 3}
    settings |= {"shared_copy_bytes": 1 << 10, "copy_threads": 2} if shared else {}
    prefill, decode = Peer(settings=settings), Peer(settings=settings)
    yield prefill.begun(), decode.begun()
    decode.end()
    prefill.end()
