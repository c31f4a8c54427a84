"""What of the ledger is not over yet: kept from one look to the next, so that each reads little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

from libs.bus.api import Store
from libs.clock.api import Clock
from proto.ids import RequestId
from proto.ledger import RequestRecord

__all__ = ["Unfinished", "is_clean"]

_ALL_S = 60.0
"""How often everything is read again: records expire, and a ledger may have been made anew."""
_TOLD_MS = 30_000
"""So long after its end nobody is told of a clean request any more."""


class Unfinished:
    """The records of requests that have not ended, or whose ends are not proved and told.

    Args:
        told: whether the proofs of a clean record have been told.
        over: called with a request of which nothing is left to do.
    """

    def __init__(
        self,
        *,
        store: Store[RequestRecord],
        clock: Clock,
        told: Callable[[RequestRecord], bool],
        over: Callable[[RequestId], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._told = told
        self._over = over
        self._records: dict[RequestId, RequestRecord] = {}
        self._since = 0
        self._all_s = float("-inf")

    @property
    def since(self) -> int:
        """The revision up to which everything has been read."""
        return self._since

    def __contains__(self, rid: object) -> bool:
        return rid in self._records

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(list(self._records.values()))

    async def look(self) -> None:
        """Read what has changed since the last look.

        Raises:
            BusDown, RequestTimeout: the next look begins where this one did.
        """
        now_s, now_ms = self._clock.monotonic(), self._clock.unix_ms()
        everything = now_s - self._all_s >= _ALL_S
        records: dict[RequestId, RequestRecord] = {}
        if not everything:
            for record in self:
                self._take(records, record, now_ms)
        newest = 0 if everything else self._since
        rows: Any = self._store.scan(newest)
        async with aclosing(rows):
            async for _, found in rows:
                newest = max(newest, found.revision)
                self._take(records, found.value, now_ms)
        self._records, self._since = records, newest
        if everything:
            self._all_s = now_s

    def _take(
        self, records: dict[RequestId, RequestRecord], record: RequestRecord, now_ms: int
    ) -> None:
        late = record.ended_ms is not None and now_ms > record.ended_ms + _TOLD_MS
        if is_clean(record) and (late or self._told(record)):
            records.pop(record.rid, None)
            self._over(record.rid)
        else:
            records[record.rid] = record


def is_clean(record: RequestRecord) -> bool:
    """Return whether a request has ended, and both its sides are proved free."""
    return record.ended and record.cleaned.src and record.cleaned.dst
