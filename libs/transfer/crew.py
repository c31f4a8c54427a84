"""Threads that help the plane's own with one large copy, and sleep otherwise.

A copy is cut into parts; whoever is free takes the next. A helper that gets no core in time is not
waited for: its share is done by others, so that on busy cores the copy takes no longer than alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Crew", "threads_for"]

_MOST = 4
"""More fill no memory's bandwidth any further."""


class Crew:
    """As many threads as share a copy; there are none before the first that is shared.

    All methods belong to one thread, which is the first of the crew.

    Args:
        threads: the most that copy at once, that one included.
        least: from so many bytes on it is worth while to wake the others.
    """

    def __init__(self, threads: int, least: int) -> None:
        self.threads = threads
        self._least = least
        self._pool: ThreadPoolExecutor | None = None

    def is_worth(self, size: int) -> bool:
        """Return whether a copy of so many bytes is to be shared."""
        return self.threads > 1 and size >= self._least

    def share(self, parts: Iterable[Callable[[], object]]) -> None:
        """Do all parts, in any order; when this returns or raises, none is being done any more.

        After the first that fails no other is begun.

        Raises:
            Exception: what that part has raised.
        """
        left = deque(parts)
        helping = [self._helpers().submit(_work, left) for _ in range(self._useful(len(left)))]
        try:
            _work(left)
        finally:
            failed = _failures(helping)
        if failed:
            raise failed[0]

    def close(self) -> None:
        """End the helpers."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _useful(self, parts: int) -> int:
        return max(0, min(self.threads, parts) - 1)

    def _helpers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads - 1, "pdbus-copy")
        return self._pool


def threads_for(wanted: int | None) -> int:
    """Return how many threads are in a crew; None leaves it to the number of cores."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(_MOST, cores // 2) if wanted is None else min(wanted, cores))


def _work(left: deque[Callable[[], object]]) -> None:
    """Do parts until none is left."""
    while True:
        try:
            part = left.popleft()
        except IndexError:
            return
        try:
            part()
        except BaseException:
            left.clear()
            raise


def _failures(helping: list[Future[None]]) -> list[BaseException]:
    """Wait for the helpers that have begun, and only for those; return what went wrong."""
    begun = [future for future in helping if not future.cancel()]
    ends = [future.exception() for future in begun]
    return [end for end in ends if end is not None]
