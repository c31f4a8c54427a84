"""The leases of one worker: its duties to free KV memory.

Only the worker that owns the memory ends a lease, on local evidence. Times are monotonic seconds
of this process, so a partition cannot stretch them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from proto.ids import Incarnation, LeaseId, RequestId, lease_id
from proto.workers import LeaseRef, LeaseSide

__all__ = ["Lease", "LeaseTable"]


@dataclass(slots=True)
class Lease:
    """One duty."""

    id: LeaseId
    rid: RequestId
    attempt: int
    side: LeaseSide
    tokens: int
    born_s: float
    closing: bool = False

    def ref(self, now_s: float) -> LeaseRef:
        """Return the lease as others see it."""
        return LeaseRef(
            lease=self.id,
            rid=self.rid,
            attempt=self.attempt,
            side=self.side,
            tokens=self.tokens,
            age_s=round(now_s - self.born_s, 3),
            closing=self.closing,
        )


class LeaseTable:
    """All open leases of one incarnation."""

    def __init__(self, incarnation: Incarnation, side: LeaseSide) -> None:
        self._incarnation = incarnation
        self._side = side
        self.crowded = False
        """Somebody was refused for want of room: who waits hears of freed room at once."""
        self._open: dict[tuple[RequestId, int], Lease] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._open.values()))

    @property
    def tokens(self) -> int:
        """Tokens promised by all open leases."""
        return sum(lease.tokens for lease in self._open.values())

    def open(self, rid: RequestId, attempt: int, tokens: int, now_s: float) -> Lease:
        """Open the lease of an attempt; the same call again returns the same lease."""
        key = (rid, attempt)
        lease = self._open.get(key)
        if lease is None:
            name = lease_id(self._incarnation, rid, attempt, self._side)
            lease = Lease(name, rid, attempt, self._side, tokens, now_s)
            self._open[key] = lease
        return lease

    def get(self, rid: RequestId, attempt: int) -> Lease | None:
        """Return the open lease of an attempt."""
        return self._open.get((rid, attempt))

    def of(self, rid: RequestId, up_to: int) -> list[Lease]:
        """Return the open leases of a request for attempts up to and including `up_to`."""
        return [x for x in self._open.values() if x.rid == rid and x.attempt <= up_to]

    def unused(self, attempts: Container[tuple[RequestId, int]]) -> list[Lease]:
        """Return the reservations: the open leases of attempts that have not come."""
        return [lease for key, lease in self._open.items() if key not in attempts]

    def end(self, rid: RequestId, attempt: int) -> Lease | None:
        """Close the lease of an attempt: its memory is free. None if it is closed already."""
        return self._open.pop((rid, attempt), None)

    def refs(self, now_s: float) -> tuple[LeaseRef, ...]:
        """Return all open leases as others see them."""
        return tuple(lease.ref(now_s) for lease in self._open.values())
