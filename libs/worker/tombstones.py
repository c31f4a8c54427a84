"""Refusals that outlive a request: a cancel that comes before its start still wins.

Sound because a tombstone lives longer than any start can be on its way: starts carry an absolute
`not_after` of a few seconds.
"""

from __future__ import annotations

from itertools import islice

from proto.ids import RequestId

__all__ = ["TOMBSTONE_S", "Tombstones"]

TOMBSTONE_S = 120.0
_MOST = 200_000


class Tombstones:
    """The newest attempt of each request that must not start any more."""

    def __init__(self) -> None:
        self._graves: dict[RequestId, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._graves)

    def bury(self, rid: RequestId, attempt: int, now_s: float) -> None:
        """Refuse attempts of `rid` up to and including `attempt` from now on."""
        before = self._graves.pop(rid, (-1, 0.0))[0]
        self._graves[rid] = (max(before, attempt), now_s + TOMBSTONE_S)
        self._sweep(now_s)

    def refuses(self, rid: RequestId, attempt: int) -> bool:
        """Return whether an attempt must not start."""
        grave = self._graves.get(rid)
        return grave is not None and attempt <= grave[0]

    def _sweep(self, now_s: float) -> None:
        # Insertion order is expiry order, so the oldest are in front.
        for rid, (_, until) in list(islice(self._graves.items(), 8)):
            if until < now_s or len(self._graves) > _MOST:
                del self._graves[rid]
            else:
                break
