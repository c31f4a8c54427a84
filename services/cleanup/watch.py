"""What cleanup knows of leases: pure soft state from heartbeats and events.

A lease is proved free by one of three kinds of evidence:

- E1: its owner said so (`lease.ended`).
- E2: two consecutive heartbeats of the same incarnation do not list it any more.
- E3: its incarnation is gone, and the memory with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from libs.fleet import Fleet, Health
from proto.ids import Incarnation, LeaseId, RequestId
from proto.workers import Heartbeat, LeaseRef, WorkerRef

__all__ = ["Evidence", "LeaseWatch", "Watched"]

_MISSES = 2
_REMEMBER_S = 10.0


class Evidence(StrEnum):
    """Why a lease counts as free."""

    E1_OWNER = "owner"
    E2_ABSENT = "absent"
    E3_GONE = "gone"


@dataclass(slots=True)
class Watched:
    """One lease that was seen open."""

    ref: LeaseRef
    owner: WorkerRef
    seen_s: float
    missed: int = 0
    ordered_s: float | None = None
    """When a release was last ordered."""
    orders: int = 0


class LeaseWatch:
    """All leases that were seen open and are not yet proved free."""

    def __init__(self) -> None:
        self._open: dict[LeaseId, Watched] = {}
        self._ended_s: dict[LeaseId, float] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Watched]:
        return iter(list(self._open.values()))

    def of(self, rid: RequestId) -> list[Watched]:
        """Return the leases of a request that are not yet proved free."""
        return [w for w in self._open.values() if w.ref.rid == rid]

    def hear(self, beat: Heartbeat, now_s: float) -> list[tuple[Watched, Evidence]]:
        """Take in an inventory; return what it proves free."""
        listed = {ref.lease: ref for ref in beat.leases}
        for lease, ref in listed.items():
            known = self._open.get(lease)
            if known is None:
                # A heartbeat may be older than the owner's word that came before it.
                if lease not in self._ended_s:
                    self._open[lease] = Watched(ref, beat.ref, now_s)
            else:
                known.ref, known.missed = ref, 0
        freed: list[tuple[Watched, Evidence]] = []
        for lease, watched in list(self._open.items()):
            if watched.owner.incarnation == beat.incarnation and lease not in listed:
                watched.missed += 1
                if watched.missed >= _MISSES:
                    freed.append((self._open.pop(lease), Evidence.E2_ABSENT))
        return freed

    def ended(self, lease: LeaseId, now_s: float) -> Watched | None:
        """Take in the owner's own word; return the lease if it was watched."""
        self._ended_s[lease] = now_s
        for old, since in list(islice(self._ended_s.items(), 4)):
            if now_s - since > _REMEMBER_S:
                del self._ended_s[old]
        return self._open.pop(lease, None)

    def sweep(self, fleet: Fleet, now_s: float) -> list[tuple[Watched, Evidence]]:
        """Return the leases whose incarnation is gone."""
        gone: dict[Incarnation, bool] = {}
        freed: list[tuple[Watched, Evidence]] = []
        for lease, watched in list(self._open.items()):
            owner = watched.owner.incarnation
            if owner not in gone:
                health = fleet.health(owner, now_s)
                gone[owner] = health is Health.DEAD or health is None
            if gone[owner]:
                freed.append((self._open.pop(lease), Evidence.E3_GONE))
        return freed
