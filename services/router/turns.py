"""The bounded queue in front of full decode pools: by priority, then first come, first placed.

A caller waits in slices of about a second, so that the loss of a router is noticed; between two
slices it keeps its turn for a moment.

Nobody starves: a step of priority is worth a head start and nothing more, so who has waited longer
than that goes before who comes with a higher priority.
"""

from __future__ import annotations

import asyncio

from libs.clock.api import Clock
from proto.ids import RequestId

__all__ = ["HEAD_START_S", "Turns"]

_KEEP_S = 2.0
HEAD_START_S = 0.4
"""What one step of priority is worth: from -10 to 10 eight seconds, while callers wait for ten."""


class Turns:
    """Who waits for a slot, in order of first arrival less the head start of its priority."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first_s: dict[RequestId, float] = {}
        self._head_s: dict[RequestId, float] = {}
        self._left_s: dict[RequestId, float] = {}
        self._present: set[RequestId] = set()
        self._waiting: dict[RequestId, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._present)

    def enter(self, rid: RequestId, priority: int = 0, came_s: float | None = None) -> bool:
        """Take a place in the queue, or take it again; return whether it is a new one.

        Args:
            rid: who.
            priority: how much of a head start it has.
            came_s: when it came; now, if it is not said.
        """
        now = self._clock.monotonic()
        for gone, since in list(self._left_s.items()):
            if now - since > _KEEP_S:
                self._forget(gone)
        self._left_s.pop(rid, None)
        new = rid not in self._first_s
        self._first_s.setdefault(rid, now if came_s is None else came_s)
        self._head_s[rid] = priority * HEAD_START_S
        self._present.add(rid)
        return new

    def keeps(self, rid: RequestId) -> bool:
        """Return whether somebody has a turn, present or between two slices."""
        return rid in self._first_s

    def leave(self, rid: RequestId, *, for_good: bool) -> None:
        """Give the place up, or only step out between two slices."""
        self._present.discard(rid)
        self._wake_one(rid)
        if for_good:
            self._forget(rid)
        elif rid in self._first_s:
            self._left_s[rid] = self._clock.monotonic()
        self.wake()

    def waited_s(self, rid: RequestId) -> float:
        """Return the seconds since the first arrival."""
        return self._clock.monotonic() - self._first_s.get(rid, self._clock.monotonic())

    def is_first(self, rid: RequestId) -> bool:
        """Return whether nobody who is present is in front."""
        mine = self._key(rid)
        return all(mine <= self._key(other) for other in self._present)

    def ahead(self, rid: RequestId) -> int:
        """Return how many are in front, those between two slices included."""
        mine = self._key(rid)
        return sum(self._key(other) < mine for other in self._first_s)

    def _key(self, rid: RequestId) -> tuple[float, RequestId]:
        came_s = self._first_s.get(rid, self._clock.monotonic())
        return came_s - self._head_s.get(rid, 0.0), rid

    def _forget(self, rid: RequestId) -> None:
        self._left_s.pop(rid, None)
        self._first_s.pop(rid, None)
        self._head_s.pop(rid, None)

    def wake(self) -> None:
        """Something changed: slots were freed, or somebody left. Only the first can use it."""
        if self._present:
            self._wake_one(min(self._present, key=self._key))

    def _wake_one(self, rid: RequestId) -> None:
        waiting = self._waiting.pop(rid, None)
        if waiting is not None:
            waiting.set()

    async def changed(self, rid: RequestId, timeout_s: float) -> None:
        """Wait until something changes for whoever is first, or `rid` leaves, or the time is up."""
        waiting = self._waiting.setdefault(rid, asyncio.Event())
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await waiting.wait()
        except TimeoutError:
            return
        finally:
            if self._waiting.get(rid) is waiting:
                del self._waiting[rid]
