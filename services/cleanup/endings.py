"""Ends requests that nobody else can end, and marks ended ones as cleaned."""

from __future__ import annotations

import msgspec

from libs.bus.api import Bus, BusDown, Conflict, RequestTimeout, Store, StoreUnknown
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
        self._freed: dict[RequestId, set[str]] = {}
        self._orphan_ms: dict[RequestId, int] = {}
        self._readable_s = clock.monotonic()

    def freed(self, rid: RequestId, lease: str) -> None:
        """Take in that a lease is proved free; an empty name where there never was one."""
        self._freed.setdefault(rid, set()).add(lease)
        while len(self._freed) > _MOST:
            self._freed.pop(next(iter(self._freed)))

    def ledger_away(self) -> None:
        """Take note that the ledger could not be read just now."""
        self._readable_s = self._clock.monotonic()

    async def settle(self) -> None:
        """Write `cleaned` into the records of ended requests whose sides are proved free."""
        for rid, leases in list(self._freed.items()):
            try:
                found = await self._store.get(rid)
                if found is None:
                    self._freed.pop(rid, None)
                elif found.value.ended:
                    self._freed.pop(rid, None)
                    cleaned = _cleaned(found.value, leases)
                    record = msgspec.structs.replace(found.value, cleaned=cleaned)
                    await self._store.update(rid, record, found.revision)
            except Conflict:
                self._freed.setdefault(rid, set()).update(leases)
            except (BusDown, RequestTimeout, StoreUnknown):
                self.ledger_away()
                self._freed.setdefault(rid, set()).update(leases)
                return

    async def consider(self, record: RequestRecord) -> None:
        """End a request that is past its time, or whose gateway is gone for too long."""
        if record.ended:
            self._orphan_ms.pop(record.rid, None)
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
