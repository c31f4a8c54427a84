from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from libs.transfer.api import RoomState, TransferFailure
from proto.errors import ErrorCode

FAILED, _, WAITING, TRANSFERRING, SUCCESS = range(5)


@pytest.fixture
def receiver(load: Callable[[str], ModuleType], backend: Any, peer: str) -> Any:
    """Return a receiver of room 7."""
    return load("receiver").UcxReceiver(mgr=backend, bootstrap_addr=peer, bootstrap_room=7)


def test_a_receiver_connects_first_and_asks_when_it_has_pages(receiver: Any, backend: Any):
    """The link is made while the request waits for pages."""
    receiver.init(0)
    assert len(backend.plane.connected) == 1
    assert receiver.poll() == WAITING
    receiver.send_metadata(np.array([3, 4], dtype=np.int32), 5, None, decode_prefix_len=32)
    (asked,) = backend.plane.asked
    assert asked["pages"] == [3, 4]
    assert (asked["row"], asked["tokens"], asked["skip_pages"]) == (5, 32, 2)
    backend.plane.handles[0].state = RoomState.MOVING
    assert receiver.poll() == TRANSFERRING
    backend.plane.handles[0].state = RoomState.DONE
    assert receiver.poll() == SUCCESS
    receiver.clear()
    assert (backend.concluded, backend.held) == ([7], [32])


def test_an_abort_before_the_ask_needs_no_plane(receiver: Any, backend: Any):
    """A request that never had pages fails at once and asks for nothing afterwards."""
    receiver.init(0)
    receiver.abort()
    assert receiver.poll() == FAILED
    receiver.send_metadata(np.array([1], dtype=np.int32), 0)
    assert backend.plane.asked == []
    assert backend.refused == [(7, ErrorCode.CANCELLED)]


def test_a_request_without_pages_gives_up_when_prefill_does(
    load: Callable[[str], ModuleType], backend: Any, peer: str
):
    """A decode engine that is full for too long fails the request instead of keeping it."""
    backend.want_timeout_s = 0.0
    receiver = load("receiver").UcxReceiver(mgr=backend, bootstrap_addr=peer, bootstrap_room=7)
    receiver.init(0)
    time.sleep(0.01)
    assert receiver.poll() == FAILED
    assert backend.refused == [(7, ErrorCode.DEADLINE)]
    with pytest.raises(Exception, match="no free pages"):
        receiver.failure_exception()


def test_an_abort_stops_the_fetch(receiver: Any, backend: Any):
    """After the abort the plane writes no page of ours, and SGLang may free them."""
    receiver.init(0)
    receiver.send_metadata(np.array([1], dtype=np.int32), 0)
    receiver.abort()
    assert backend.plane.handles[0].state is RoomState.FAILED
    assert receiver.poll() == FAILED
    assert receiver.is_abort_release_safe()
    assert not receiver.abort_notified


def test_a_bad_address_fails_the_request_not_the_engine(
    load: Callable[[str], ModuleType], backend: Any
):
    """An exception in SGLang's loop would end the engine, so the receiver is born failed."""
    receiver = load("receiver").UcxReceiver(
        mgr=backend, bootstrap_addr="10.0.0.1:8998", bootstrap_room=7
    )
    receiver.init(0)
    assert receiver.poll() == FAILED
    assert backend.refused == [(7, ErrorCode.INVALID_REQUEST)]
    with pytest.raises(Exception, match="not an address"):
        receiver.failure_exception()


def test_a_failure_is_told_in_the_words_of_the_plane(receiver: Any, backend: Any):
    """SGLang's log carries the reason."""
    receiver.init(0)
    receiver.send_metadata(np.array([1], dtype=np.int32), 0)
    backend.plane.handles[0].state = RoomState.FAILED
    backend.plane.handles[0].failure = TransferFailure(ErrorCode.PREFILL_LOST, "prefill is gone")
    assert receiver.poll() == FAILED
    with pytest.raises(Exception, match="prefill is gone"):
        receiver.failure_exception()
