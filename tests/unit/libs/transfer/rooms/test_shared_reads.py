"""Long chunks on the cma lane, which several threads read together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from libs.transfer import reach
from libs.transfer.api import RoomState
from libs.transfer.crew import Crew
from libs.transfer.rooms import FetchRoom, Filled, OfferRoom
from libs.transfer.wire import unseal_chunk
from proto.kv import Lane
from tests.unit.libs.transfer.rooms.test_rooms import Side, linked, slab_for

DEADLINE_S = 5.0
PAGES = list(range(8))

Copy = Callable[..., None]


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Return a crew of two that shares everything."""
    made = Crew(2, 1)
    yield made
    made.close()


@pytest.fixture
def ends(crew: Crew) -> tuple[OfferRoom, FetchRoom, Filled]:
    """Return both ends of a room, and the chunk that is all of it."""
    offer, fetch = linked(Side(1), Side(2), PAGES, lane=Lane.CMA, crew=crew)
    offer.push(PAGES[::-1], first_page=0, last=True, row=0)
    filled = offer.fill(slab_for(len(PAGES)))
    assert filled is not None
    return offer, fetch, filled


def instead(monkeypatch: pytest.MonkeyPatch, helper: Callable[[], None]) -> None:
    """Have the helper do something before it copies, and the plane's thread wait for that."""
    pull, inside = reach.pull, threading.Event()

    def copy(*arguments: object) -> None:
        if threading.current_thread().name.startswith("pdbus-copy"):
            inside.set()
            helper()
        else:
            assert inside.wait(DEADLINE_S)
        pull(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(reach, "pull", copy)


def accept(fetch: FetchRoom, chunk: Filled) -> bool:
    """Take a chunk of this process."""
    header = unseal_chunk(chunk.message)
    return fetch.accept(header, chunk.message, same_clock=True, pid=os.getpid())


def test_abort_waits_for_a_helper(
    ends: tuple[OfferRoom, FetchRoom, Filled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decode's `abort` returns only when the last of the threads has written its last byte."""
    _, fetch, filled = ends
    inside, leave, aborted = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert leave.wait(DEADLINE_S)
        assert not aborted.is_set()

    def abort() -> None:
        fetch.abort("reused")
        aborted.set()

    instead(monkeypatch, wait)
    taken: list[bool] = []
    reader = threading.Thread(target=lambda: taken.append(accept(fetch, filled)))
    reader.start()
    assert inside.wait(DEADLINE_S)
    stopper = threading.Thread(target=abort)
    stopper.start()
    assert not aborted.wait(0.05)
    leave.set()
    reader.join(DEADLINE_S)
    stopper.join(DEADLINE_S)
    assert aborted.is_set()
    assert taken == [True]
    assert fetch.state is RoomState.DONE


def test_the_lease_is_looked_at_behind_all_parts(
    ends: tuple[OfferRoom, FetchRoom, Filled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where prefill takes its pages back while a helper reads, nothing of the chunk counts."""
    offer, fetch, filled = ends
    instead(monkeypatch, lambda: offer.abort("reused"))
    assert not accept(fetch, filled)
    assert fetch.state is RoomState.READY


def test_a_helper_that_cannot_read_fails_the_chunk(
    ends: tuple[OfferRoom, FetchRoom, Filled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes wrong in one part is told, and the room takes nothing more."""
    _, fetch, filled = ends

    def fail() -> None:
        raise OSError(14, "Bad address")

    instead(monkeypatch, fail)
    with pytest.raises(OSError, match="Bad address"):
        accept(fetch, filled)
    monkeypatch.undo()
    assert not accept(fetch, filled)
    assert fetch.state is RoomState.READY
