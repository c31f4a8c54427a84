"""What a plane's thread does when: a note of each step, in a process that is being measured.

Steps are wrapped where their classes and modules keep them, so that nothing of it is in the code
that is measured. A note costs about a microsecond.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple

__all__ = ["COPY", "DIGEST", "SLEEP", "STEPS", "UCX", "Note", "Tape"]

SLEEP, COPY, DIGEST, UCX = "sleep", "copy", "digest", "ucx"

_FETCH, _OFFER = "libs.transfer.rooms.fetch", "libs.transfer.rooms.offer"
_STORE = "libs.transfer.pages:PageStore"
_PORT = "libs.transfer.ucx.port:Port"

STEPS = {
    "libs.transfer.plane:UcxPlane.fetch": "fetch",
    "libs.transfer.plane:UcxPlane._settle": "tell of what is over",
    "libs.transfer.ucx.loop:Loop._sleep": SLEEP,
    "libs.transfer.ucx.loop:Loop.drain": "commands",
    f"{_PORT}.progress": f"{UCX} progress",
    f"{_PORT}.arm": f"{UCX} arm",
    f"{_PORT}.send": f"{UCX} send",
    f"{_PORT}.receive": f"{UCX} receive",
    "libs.transfer.links.inbound:Inbound.ask": "ask",
    "libs.transfer.links.inbound:Inbound._take": "take a chunk",
    "libs.transfer.links.outbound:Outbound._hear": "hear",
    f"{_FETCH}:FetchRoom.look_ahead": "look ahead",
    f"{_FETCH}:FetchRoom.accept": "accept",
    f"{_FETCH}:pull_leased": f"{COPY} by the kernel",
    f"{_FETCH}:digest_of": DIGEST,
    f"{_FETCH}:digest_of_runs": DIGEST,
    f"{_OFFER}:OfferRoom.fill": "make a chunk",
    f"{_OFFER}:digest_of": DIGEST,
    f"{_OFFER}:digest_of_runs": DIGEST,
    "libs.transfer.wire:digest_of": DIGEST,
    f"{_STORE}.runs": "look where pages are",
    f"{_STORE}.gather_pages": f"{COPY} out of pages",
    f"{_STORE}.scatter_pages": f"{COPY} into pages",
}
"""Where each step is, and its name; the first word of some says what kind of work it is."""


class Note(NamedTuple):
    """One step."""

    step: str
    began: int
    """Nanoseconds of the monotonic clock, which all processes of a host share."""
    ended: int
    waited: int
    """Nanoseconds that the thread was ready to run and had no core; only sleeps are asked."""


class Tape:
    """The notes of one process."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._looks = threading.local()

    def wind(self) -> None:
        """Begin to note."""
        for place, step in STEPS.items():
            module, _, path = place.partition(":")
            owner: Any = import_module(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            setattr(owner, name, self._noted(getattr(owner, name), step))

    def cut(self) -> list[Note]:
        """Return the notes since the last cut."""
        notes = self._notes.copy()
        self._notes.clear()
        return notes

    def _noted(self, function: Callable[..., Any], step: str) -> Callable[..., Any]:
        """Return a function that leaves a note of each call."""
        add, clock, looks = self._notes.append, time.monotonic_ns, step == SLEEP

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            waited = self._waited() if looks else 0
            began = clock()
            try:
                return function(*arguments, **named)
            finally:
                ended = clock()
                add(Note(step, began, ended, self._waited() - waited if looks else 0))

        return call

    def _waited(self) -> int:
        """Return the nanoseconds that this thread was ready to run and had no core."""
        fd: int | None = getattr(self._looks, "fd", None)
        if fd is None:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            fd = self._looks.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(fd, 64, 0).split()[1])
