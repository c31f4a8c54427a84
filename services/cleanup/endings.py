"""Ends requests that nobody else can end, and marks ended ones as cleaned."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

import msgspec

from libs.bus.api import (
    Bus,
    BusDown,
    Conflict,
    RequestTimeout,
    Store,
    StoreUnknown,
    Versioned,
)
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.fleet import SUSPECT_S, Fleet, Health
from libs.telemetry import count, get_logger, names
from proto import subjects
from proto.control import Cancel
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.ids import RequestId
from proto.ledger import Cleaned, RequestRecord, RequestState
from proto.workers import LeaseSide
from services.cleanup.proofs import lease_of
from services.cleanup.unfinished import is_clean

__all__ = ["Endings"]

_LATE_MS = 2_000
"""How long after its deadline a request may stay open before cleanup ends it."""
_LATE_ALIVE_MS = 6_000
"""The same while its gateway lives."""
_READABLE_S = 4.0
"""How long the ledger must have been readable before a living gateway is overruled."""
_ATTACH_MS = 10_000
"""How long a request survives the loss of its gateway, for the client to come back."""
_MOST = 10_000
_SHOWN_S = 6.0
"""A request that has not been shown by then was over before its last lease was told of."""
_ASK_S = 3.0
"""How long the end of a request is asked for once one of its leases is free before its time."""


@dataclass(slots=True)
class _Freed:
    """What is proved of one request."""

    since_s: float
    leases: set[str] = field(default_factory=set[str])
    """Those that are free; an empty name where there was nothing to free."""


class Endings:
    """The endings that cleanup writes: for dead gateways, for missed deadlines, for freed sides."""

    def __init__(
        self,
        *,
        bus: Bus,
        store: Store[RequestRecord],
        clock: Clock,
        fleet: Fleet,
        chronicle: Chronicle,
    ) -> None:
        self._bus = bus
        self._store = store
        self._clock = clock
        self._fleet = fleet
        self._chronicle = chronicle
        self._freed: dict[RequestId, _Freed] = {}
        self._due_s: dict[RequestId, float] = {}
        """Requests whose record is to be written, and until when their end is waited for."""
        self._orphan_ms: dict[RequestId, int] = {}
        self._readable_s = clock.monotonic()

    def freed(self, rid: RequestId, lease: str, *, soon: bool) -> None:
        """Take in that a lease is proved free; an empty name where there never was one.

        Where a request comes to its ordinary end, its gateway has heard the same, and has most
        likely written it; what it has not is seen when the ledger is looked through. With `soon`
        nobody else is likely to write it.
        """
        now_s = self._clock.monotonic()
        freed = self._freed.get(rid)
        if freed is None:
            freed = self._freed[rid] = _Freed(now_s)
        freed.leases.add(lease)
        if soon:
            self._due_s[rid] = now_s + _ASK_S
        while len(self._freed) > _MOST:
            self.over(next(iter(self._freed)))

    def told(self, record: RequestRecord, side: LeaseSide) -> bool:
        """Return whether the proof of one side has been told, if there is anything to prove."""
        lease = lease_of(record, side)
        return lease is None or lease in self._leases(record.rid)

    def _leases(self, rid: RequestId) -> set[str]:
        freed = self._freed.get(rid)
        return set() if freed is None else freed.leases

    def ask_of_lost(self, known: Container[RequestId]) -> None:
        """Look soon at the records of requests that nobody has shown here, and yet are proved."""
        now_s = self._clock.monotonic()
        for rid, freed in self._freed.items():
            if now_s - freed.since_s > _SHOWN_S and rid not in known:
                self._due_s.setdefault(rid, 0.0)

    def over(self, rid: RequestId) -> None:
        """Forget a request of which nothing is left to do."""
        self._freed.pop(rid, None)
        self._due_s.pop(rid, None)
        self._orphan_ms.pop(rid, None)

    def ledger_away(self) -> None:
        """Take note that the ledger could not be read just now."""
        self._readable_s = self._clock.monotonic()

    async def settle(self, seen: int) -> None:
        """Write `cleaned` into the records of ended requests whose sides are proved free.

        Args:
            seen: up to which revision the ledger has been looked through.
        """
        for rid, until_s in list(self._due_s.items()):
            try:
                found = await self._store.get(rid)
                if found is None:
                    self.over(rid)
                    continue
                if found.value.ended:
                    await self._clean(found)
                    if is_clean(found.value) and found.revision <= seen:
                        self.over(rid)
                elif self._clock.monotonic() < until_s:
                    # Its end is on its way; where it is not, it is seen when it comes.
                    continue
            except Conflict:
                continue
            except (BusDown, RequestTimeout, StoreUnknown):
                self.ledger_away()
                return
            self._due_s.pop(rid, None)

    async def _clean(self, found: Versioned[RequestRecord]) -> None:
        record = found.value
        cleaned = _cleaned(record, self._leases(record.rid))
        if cleaned != record.cleaned:
            record = msgspec.structs.replace(record, cleaned=cleaned)
            await self._store.update(record.rid, record, found.revision)

    async def consider(self, record: RequestRecord) -> None:
        """End a request that is past its time, or whose gateway is gone for too long.

        Of one that has ended, write soon what is proved free.
        """
        if record.ended:
            self._orphan_ms.pop(record.rid, None)
            if _cleaned(record, self._leases(record.rid)) != record.cleaned:
                self._due_s.setdefault(record.rid, 0.0)
            return
        now_ms = self._clock.unix_ms()
        now_s = self._clock.monotonic()
        health = self._fleet.health(record.sink.incarnation, now_s)
        # Who was deaf just now has not heard the living either.
        deaf = self._fleet.listening_s(now_s) < SUSPECT_S
        alive = deaf or health in {Health.ALIVE, Health.SUSPECT}
        # A living gateway ends its own requests; it may only have been parted from the ledger.
        late_ms = _LATE_ALIVE_MS if alive else _LATE_MS
        if now_ms > record.deadline_ms + late_ms:
            if not alive or self._clock.monotonic() - self._readable_s > _READABLE_S:
                await self._end(record, ErrorCode.DEADLINE, "no gateway ended it in time")
            return
        if alive:
            self._orphan_ms.pop(record.rid, None)
            return
        since = self._orphan_ms.setdefault(record.rid, now_ms)
        if now_ms - since >= _ATTACH_MS:
            await self._end(record, ErrorCode.GATEWAY_LOST, record.sink.gateway)

    async def _end(self, record: RequestRecord, code: ErrorCode, detail: str) -> None:
        try:
            found = await self._store.get(record.rid)
            if found is None or found.value.ended or found.value.sink != record.sink:
                return
            failed = msgspec.structs.replace(
                found.value,
                state=RequestState.FAILED,
                error=code,
                detail=detail,
                ended_ms=self._clock.unix_ms(),
            )
            await self._store.update(record.rid, failed, found.revision)
            cancel = Cancel(rid=record.rid, attempt=failed.attempt, reason=str(code))
            await self._bus.publish(subjects.cancel(record.tenant, record.rid), cancel)
        except (Conflict, BusDown, RequestTimeout, StoreUnknown) as error:
            get_logger().info("ending put off", rid=record.rid, error=str(error))
            return
        self._orphan_ms.pop(record.rid, None)
        count(names.CLEANUP_REQUESTS_CLOSED, state=str(RequestState.FAILED))
        self._chronicle.fact(
            EventKind.REQUEST_FAILED, record.rid, max(0, record.attempt), code=str(code)
        )


def _cleaned(record: RequestRecord, freed: set[str]) -> Cleaned:
    # A reservation that was given back elsewhere says nothing of the place that was taken.
    src, dst = lease_of(record, LeaseSide.SRC), lease_of(record, LeaseSide.DST)
    return Cleaned(
        src=record.cleaned.src or src is None or src in freed,
        dst=record.cleaned.dst or dst is None or dst in freed,
    )
