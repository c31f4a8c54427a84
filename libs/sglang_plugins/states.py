"""The data plane's room states in SGLang's words."""

from __future__ import annotations

from libs.transfer.api import RoomState

__all__ = [
    "BOOTSTRAPPING",
    "FAILED",
    "SUCCESS",
    "TRANSFERRING",
    "WAITING_FOR_INPUT",
    "poll_of",
]

FAILED = 0
BOOTSTRAPPING = 1
WAITING_FOR_INPUT = 2
TRANSFERRING = 3
SUCCESS = 4

_POLLS = {
    RoomState.FAILED: FAILED,
    RoomState.WAITING: BOOTSTRAPPING,
    RoomState.READY: WAITING_FOR_INPUT,
    RoomState.MOVING: TRANSFERRING,
    RoomState.DONE: SUCCESS,
}


def poll_of(state: RoomState) -> int:
    """Return the `KVPoll` value that stands for a state."""
    return _POLLS[state]
