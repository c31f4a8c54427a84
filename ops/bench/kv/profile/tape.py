"""What a plane's threads do when: a note of each step, in a process that is being measured.

Steps are wrapped where their classes and modules keep them, so that nothing of it is in the code
that is measured. Writing a note takes about half a microsecond.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

__all__ = ["STEPS", "Note", "Tape"]

Note = tuple[str, int, int, int]
"""A step, when it began and ended (nanoseconds of the monotonic clock), and how many of them its
thread was ready to run and had no core; -1 where nobody looked."""

SLEEP, COPY, DIGEST, UCX = "sleep", "copy", "digest", "ucx"

STEPS = {
    "libs.transfer.ucx.loop:Loop._sleep": SLEEP,
    "libs.transfer.ucx.loop:Loop.drain": "commands",
    "libs.transfer.ucx.port:Port.progress": f"{UCX} progress",
    "libs.transfer.ucx.port:Port.arm": f"{UCX} arm",
    "libs.transfer.ucx.port:Port.send": f"{UCX} send",
    "libs.transfer.ucx.port:Port.receive": f"{UCX} receive",
    "libs.transfer.links.inbound:Inbound.ask": "ask",
    "libs.transfer.links.inbound:Inbound._take": "take a chunk",
    "libs.transfer.links.outbound:Outbound._hear": "hear",
    "libs.transfer.rooms.fetch:FetchRoom.look_ahead": "look ahead",
    "libs.transfer.rooms.fetch:FetchRoom.accept": "accept",
    "libs.transfer.rooms.fetch:pull": f"{COPY} by the kernel",
    "libs.transfer.rooms.fetch:peek": "look at the lease",
    "libs.transfer.rooms.fetch:digest_of_runs": DIGEST,
    "libs.transfer.rooms.offer:OfferRoom.fill": "make a chunk",
    "libs.transfer.rooms.offer:digest_of_runs": DIGEST,
    "libs.transfer.pages:PageStore.runs": "where pages are",
    "libs.transfer.pages:PageStore.gather_pages": f"{COPY} out of pages",
    "libs.transfer.pages:PageStore.scatter_pages": f"{COPY} into pages",
    "libs.transfer.wire:digest_of": DIGEST,
    "libs.transfer.plane:UcxPlane._settle": "settle",
}
"""Where each step is, and its name; the first word of some says what kind of work it is."""


class Tape:
    """The notes of one process."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._delays = threading.local()

    def wind(self) -> None:
        """Begin to note."""
        for place, step in STEPS.items():
            module, _, path = place.partition(":")
            owner: Any = import_module(module)
            *outer, name = path.split(".")
            for part in outer:
                owner = getattr(owner, part)
            setattr(owner, name, self.noted(getattr(owner, name), step))

    def noted(self, function: Callable[..., Any], step: str) -> Callable[..., Any]:
        """Return a function that leaves a note of each call."""
        notes, clock, looks = self.notes, time.monotonic_ns, step == SLEEP

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            waited = self._waited() if looks else 0
            began = clock()
            try:
                return function(*arguments, **named)
            finally:
                ended = clock()
                notes.append((step, began, ended, self._waited() - waited if looks else -1))

        return call

    def _waited(self) -> int:
        """Return the nanoseconds that this thread was ready to run and had no core."""
        fd: int | None = getattr(self._delays, "fd", None)
        if fd is None:
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            fd = self._delays.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return int(os.pread(fd, 64, 0).split()[1])
