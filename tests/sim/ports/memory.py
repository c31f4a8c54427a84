"""Paged memory with an owner on each page; a write by anyone else is a violation of I5."""

from __future__ import annotations

from proto.ids import JobId
from tests.sim.kernel.trace import Trace

__all__ = ["Memory"]


class Memory:
    """The KV pages of one engine.

    Args:
        pages: how many there are.
        trace: where a wrong write is told.
        name: of the engine, for people.
    """

    def __init__(self, pages: int, trace: Trace, name: str) -> None:
        self._trace = trace
        self._name = name
        self._owner: list[JobId | None] = [None] * pages
        self._content: list[int] = [0] * pages
        self._free = list(range(pages))
        self._held: dict[JobId, list[int]] = {}

    @property
    def used(self) -> int:
        """Pages that have an owner."""
        return len(self._owner) - len(self._free)

    def allocate(self, job: JobId, count: int) -> bool:
        """Give a job pages; False if there are too few now. What was in them stays in them."""
        if count > len(self._free):
            return False
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._owner[page] = job
        self._held[job] = pages
        return True

    def free(self, job: JobId) -> None:
        """Take all pages of a job back."""
        for page in self._held.pop(job, []):
            self._owner[page] = None
            self._free.append(page)

    def write(self, job: JobId, place: int, content: int) -> None:
        """Write one page of a job."""
        pages = self._held.get(job)
        if pages is None or place >= len(pages) or self._owner[pages[place]] != job:
            self._trace.violate("I5", f"{self._name}: {job} writes page {place}, not its own")
            return
        self._content[pages[place]] = content

    def read(self, job: JobId, first: int, count: int) -> list[int]:
        """Return the contents of some pages of a job."""
        pages = self._held.get(job, [])[first : first + count]
        return [self._content[page] for page in pages]

    def clear(self) -> None:
        """Forget everything: the process is gone."""
        for job in list(self._held):
            self.free(job)
