"""A port sleeps only after it has looked once more at whatever kept it awake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from libs.transfer.ucx import Port


class Worker:
    """A worker that notes what is asked of it, and agrees to sleep when its list says so."""

    epoll_file_descriptor = -1
    address = b"here"

    def __init__(self, armed: list[bool]) -> None:
        self.armed = armed
        self.notes: list[str] = []

    def init_blocking_progress_mode(self) -> None:
        """Do nothing."""

    def progress(self) -> None:
        self.notes.append("progress")

    def arm(self) -> bool:
        self.notes.append("arm")
        return self.armed.pop(0)


class Address(bytes):
    """An address that is copied as an array is."""

    def tobytes(self) -> bytes:
        return bytes(self)


def port(worker: Worker) -> Port:
    """Return a port on a worker."""
    worker.address = Address(b"here")
    api: Any = SimpleNamespace(UCXWorker=lambda _context: worker)
    return Port(api, None)


LOOK = ["progress", "work"]


@pytest.mark.parametrize(
    ("armed", "found", "steps", "outcome"),
    [
        ([], [True], LOOK, (True, True)),
        ([True], [False], [*LOOK, "arm"], (False, False)),
        ([False, True], [False, False], [*LOOK, "arm", *LOOK, "arm"], (False, False)),
        ([False, False], [False, False], [*LOOK, "arm", *LOOK, "arm"], (False, True)),
        ([False], [False, True], [*LOOK, "arm", *LOOK], (True, True)),
    ],
    ids=["fruit", "quiet", "quiet-then", "waits", "fruit-then"],
)
def test_a_port_that_may_not_sleep_looks_again(
    armed: list[bool], found: list[bool], steps: list[str], outcome: tuple[bool, bool]
) -> None:
    """Between a refusal to sleep and the next try lies a look at what has come; none is skipped."""
    worker = Worker(armed)

    def work() -> bool:
        worker.notes.append("work")
        return found.pop(0)

    assert port(worker).turn(work) == outcome
    assert worker.notes == steps
