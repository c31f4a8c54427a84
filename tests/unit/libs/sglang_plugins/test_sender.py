from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from libs.transfer.api import RoomState, TransferFailure
from proto.errors import ErrorCode

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)


@pytest.fixture
def sender(load: Callable[[str], ModuleType], backend: Any) -> Any:
    """Return a sender of room 7."""
    return load("sender").UcxSender(
        mgr=backend, bootstrap_addr="prefill:1", bootstrap_room=7, req_has_disagg_prefill_dp_rank=0
    )


def _handle(backend: Any) -> Any:
    return backend.plane.handles[0]


@pytest.mark.parametrize(
    ("state", "poll"),
    [
        (RoomState.WAITING, BOOTSTRAPPING),
        (RoomState.READY, WAITING),
        (RoomState.MOVING, TRANSFERRING),
        (RoomState.DONE, SUCCESS),
        (RoomState.FAILED, FAILED),
    ],
)
def test_each_state_has_its_poll_value(sender: Any, backend: Any, state: RoomState, poll: int):
    """SGLang sees the state of the room, and the backend hears of the end exactly once."""
    _handle(backend).state = state
    assert sender.poll() == poll
    assert sender.poll() == poll
    assert backend.concluded == ([7] if poll in (SUCCESS, FAILED) else [])


def test_chunks_carry_their_place_and_the_last_one_the_row(sender: Any, backend: Any):
    """Pages keep their order over chunks, after those that decode already holds."""
    _handle(backend).skip_pages = 2
    assert sender.pop_decode_prefix_len() == 32
    sender.init(5, 3)
    sender.send(np.array([9, 8, 7], dtype=np.int32))
    sender.send(np.array([6, 5], dtype=np.int32))
    assert _handle(backend).pushed == [
        ([9, 8, 7], 2, False, None),
        ([6, 5], 5, True, 3),
    ]


def test_what_decode_holds_is_told_though_computing_began_before_the_ask(sender: Any, backend: Any):
    """The scheduler began with nothing left out; the report says what was left out in the end."""
    assert sender.pop_decode_prefix_len() == 0
    sender.init(3, 3)
    _handle(backend).skip_pages = 2
    sender.send(np.array([9, 8, 7], dtype=np.int32))
    assert _handle(backend).pushed == [([9, 8, 7], 0, True, 3)]
    _handle(backend).state = RoomState.DONE
    assert sender.poll() == SUCCESS
    assert backend.held == [32]


def test_an_empty_last_chunk_is_still_sent(sender: Any, backend: Any):
    """When decode holds all pages, the row must travel nevertheless."""
    sender.init(0, 4)
    assert sender.should_send_kv_chunk(0, last_chunk=True)
    assert not sender.should_send_kv_chunk(0, last_chunk=False)
    sender.send(np.array([], dtype=np.int32))
    assert _handle(backend).pushed == [([], 0, True, 4)]


def test_events_of_the_device_are_awaited_before_pages_are_read(sender: Any, backend: Any):
    """Pages are pushed only after the device has written them and their numbers."""
    seen: list[str] = []

    class Event:
        def __init__(self, name: str) -> None:
            self.name = name

        def synchronize(self) -> None:
            assert not _handle(backend).pushed
            seen.append(self.name)

    sender.init(1, 0)
    sender._early_send_wait_event = Event("pages")
    sender.send(np.array([1], dtype=np.int32), indices_event=Event("numbers"))
    assert seen == ["pages", "numbers"]
    assert sender._early_send_wait_event is None


def test_nothing_is_sent_after_an_abort(sender: Any, backend: Any):
    """An aborted sender reads no page any more and says why it failed."""
    sender.init(1, 0)
    sender.abort()
    sender.send(np.array([1], dtype=np.int32))
    assert _handle(backend).pushed == []
    assert sender.failed
    with pytest.raises(Exception, match="aborted by the prefill engine"):
        sender.failure_exception()
    sender.clear()
    assert backend.concluded == [7]


def test_a_failure_is_told_in_the_words_of_the_plane(sender: Any, backend: Any):
    """SGLang's log carries the reason."""
    _handle(backend).state = RoomState.FAILED
    _handle(backend).failure = TransferFailure(ErrorCode.DECODE_LOST, "decode is gone")
    assert sender.poll() == FAILED
    with pytest.raises(Exception, match="decode is gone"):
        sender.failure_exception()


def test_a_linked_asker_need_not_have_asked_before_computing_begins(sender: Any, backend: Any):
    """The prompt begins; what decode turns out to hold changes no place of what is sent."""
    backend.linked = "prefill"
    assert backend.plane.askers == ["prefill"]
    assert sender.poll() == WAITING
    assert sender.pop_decode_prefix_len() == 0
    sender.init(3, 1)
    sender.send(np.array([4, 5], dtype=np.int32))
    backend.linked = ""
    assert sender.poll() == WAITING
    _handle(backend).skip_pages = 1
    _handle(backend).state = RoomState.READY
    assert sender.poll() == WAITING
    assert backend.asked == [7]
    sender.send(np.array([6], dtype=np.int32))
    assert _handle(backend).pushed == [([4, 5], 0, False, None), ([6], 2, True, 1)]


@pytest.mark.parametrize(
    ("state", "first"), [(RoomState.DONE, TRANSFERRING), (RoomState.FAILED, FAILED)]
)
def test_what_was_sent_is_told_a_moment_later(
    sender: Any, backend: Any, state: RoomState, first: int
):
    """Decode has the core first, and the scheduler looks again; a failure is told at once."""
    sender.init(1, 0)
    sender.send([3])
    _handle(backend).state = state
    backend.rest_s = 3600.0
    assert sender.poll() == first
    assert backend.looks == (first == TRANSFERRING)
    backend.rest_s = 0.0
    assert sender.poll() == (SUCCESS if state is RoomState.DONE else FAILED)
    assert backend.concluded == [7]
