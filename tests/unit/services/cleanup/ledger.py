"""A ledger in memory that counts what is read of it, and a clock that is set by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

from libs.bus.api import Conflict, RequestTimeout, Versioned
from proto.ids import RequestId
from proto.ledger import RequestRecord

__all__ = ["HandClock", "MemoryLedger"]


class MemoryLedger:
    """Records by compare-and-set."""

    def __init__(self) -> None:
        self.rows: dict[str, Versioned[RequestRecord]] = {}
        self.last = 0
        self.reads = 0
        self.shown: list[RequestId] = []
        """What scans have shown, in order."""
        self.breaks_after: int | None = None
        """So many rows a scan shows before the ledger is away."""

    def put(self, record: RequestRecord) -> int:
        """Write a record as another process does."""
        self.last += 1
        self.rows[record.rid] = Versioned(record, self.last)
        return self.last

    async def get(self, key: str) -> Versioned[RequestRecord] | None:
        """Return a record."""
        self.reads += 1
        return self.rows.get(key)

    async def update(self, key: str, value: RequestRecord, revision: int) -> int:
        """Change a record."""
        if self.rows[key].revision != revision:
            raise Conflict(key)
        return self.put(value)

    async def scan(self, since: int = 0) -> AsyncIterator[tuple[str, Versioned[RequestRecord]]]:
        """Go through what has changed."""
        rows = sorted(self.rows.items(), key=lambda row: row[1].revision)
        for number, (key, found) in enumerate(row for row in rows if row[1].revision > since):
            if self.breaks_after is not None and number >= self.breaks_after:
                raise RequestTimeout("away")
            self.shown.append(found.value.rid)
            yield key, found


class HandClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.entropy = Random(1)

    def monotonic(self) -> float:
        """Return the seconds."""
        return self.now_s

    def unix_ms(self) -> int:
        """Return the milliseconds of the same clock."""
        return int(self.now_s * 1000)

    async def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now_s += seconds
