"""What comes due for the attempts of a worker: beats, the end of reservations, oblivion.

One task looks after all of them, once a second and whenever a reservation ends: a task for each
would cost as much as the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import inf

from libs.clock.api import Clock
from libs.lifecycle.tasks import Tasks
from libs.telemetry import count, get_logger, names
from libs.worker.attempt import Attempt
from proto.ids import RequestId

__all__ = ["Upkeep", "contained"]

_BEAT_S = 1.0
_RETAIN_S = 10.0

Key = tuple[RequestId, int]


class Upkeep:
    """The attempts that live, those that are over, and the reservations that nobody has started.

    Args:
        clock: time.
        tasks: owns what waits.
        beat: called once a second for each attempt that lives.
        expire: called when a reservation was not started in time.
        forget: called 10 to 11 s after the end of an attempt: a late copy of its start, or a
            replay, may come until then.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        tasks: Tasks,
        beat: Callable[[Attempt], None],
        expire: Callable[[RequestId, int], None],
        forget: Callable[[Attempt], None],
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._beat = beat
        self._expire = expire
        self._forget = forget
        self._living: dict[Key, Attempt] = {}
        self._over: deque[tuple[float, Attempt]] = deque()
        """Those that ended first are in front."""
        self._held: dict[Key, float] = {}
        self._wakes_s = inf

    def watch(self, attempt: Attempt) -> None:
        """Look after an attempt from now on; its reservation has been used."""
        key = (attempt.rid, attempt.number)
        self._held.pop(key, None)
        self._living[key] = attempt

    def release(self, attempt: Attempt) -> None:
        """Let an attempt rest that is over."""
        if self._living.pop((attempt.rid, attempt.number), None) is not None:
            self._over.append((self._clock.monotonic() + _RETAIN_S, attempt))

    def hold(self, rid: RequestId, attempt: int, for_s: float) -> None:
        """End a reservation after a while, unless it is used before."""
        due_s = self._clock.monotonic() + for_s
        self._held[rid, attempt] = due_s
        if due_s < self._wakes_s:
            self._tasks.spawn(self._end_after(for_s), name="reservation")

    async def run(self) -> None:
        """Look after all of them until cancelled."""
        round_s = self._clock.monotonic() + _BEAT_S
        while True:
            now = self._clock.monotonic()
            self._wakes_s = min(round_s, *self._held.values()) if self._held else round_s
            if self._wakes_s > now:
                await self._clock.sleep(self._wakes_s - now)
                now = self._clock.monotonic()
            self._end_reservations(now)
            if now >= round_s:
                round_s = now + _BEAT_S
                self._round(now)

    async def _end_after(self, for_s: float) -> None:
        await self._clock.sleep(for_s)
        self._end_reservations(self._clock.monotonic())

    def _end_reservations(self, now: float) -> None:
        for key in [key for key, due_s in self._held.items() if due_s <= now]:
            del self._held[key]
            with contained("reservation"):
                self._expire(*key)

    def _round(self, now: float) -> None:
        for attempt in list(self._living.values()):
            with contained("beat"):
                self._beat(attempt)
        while self._over and self._over[0][0] <= now:
            with contained("retire"):
                self._forget(self._over.popleft()[1])


@contextmanager
def contained(task: str) -> Generator[None]:
    """Log and count a fault of what is done for one attempt: the others go on."""
    try:
        yield
    except Exception:  # noqa: BLE001 - the last net of what runs without a task of its own
        count(names.TASK_FAILURES, task=task)
        get_logger().exception("task failed", task=task)
