"""The cleanup service: compares ledger, leases and liveness; orders; proves.

It frees nothing itself: only the worker that owns memory frees it. It holds soft state only, so
several may run; their orders are idempotent and their proofs carry the same key.
"""

from __future__ import annotations

import asyncio

from libs.bus.api import Bus, BusDown, BusError, RequestTimeout, Store, Subscription
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.fleet import DEAD_S, Announcer, Fleet, FleetListener, Member
from libs.fleet.announcer import Presence
from libs.lifecycle.tasks import Tasks
from libs.telemetry import (
    Attribute,
    attributes,
    count,
    get_logger,
    linked_root,
    names,
    observe,
    set_attributes,
)
from proto import subjects
from proto.control import Abort, Aborted
from proto.errors import PdbusError
from proto.events import FINISHED, Event, EventKind
from proto.ids import Incarnation, InstanceId, LeaseId, RequestId
from proto.ledger import RequestRecord
from proto.workers import LeaseSide, Role, WorkerRef, WorkerState
from services.cleanup.endings import Endings
from services.cleanup.proofs import lease_of, proved_free
from services.cleanup.unfinished import Unfinished
from services.cleanup.watch import Evidence, LeaseWatch, Watched

__all__ = ["CleanupService"]

_SCAN_S = 1.0
_RECONCILE_S = 10.0
_GRACE_S = 2.0
"""How long a lease may outlive its request before its release is ordered."""
_ORDER_EVERY_S = 2.0
_RPC_S = 1.0
_AT_ONCE = 256
"""Orders that are on their way together."""


class CleanupService:
    """Watches that no KV outlives its request, and that no request outlives its gateway."""

    def __init__(
        self,
        *,
        bus: Bus,
        store: Store[RequestRecord],
        clock: Clock,
        tasks: Tasks,
        instance: InstanceId,
        incarnation: Incarnation,
    ) -> None:
        self.fleet = Fleet()
        self.watch = LeaseWatch()
        self._bus = bus
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._ref = WorkerRef(role=Role.CLEANUP, instance=instance, incarnation=incarnation)
        self._state = WorkerState.LOADING
        self._chronicle = Chronicle(bus=bus, clock=clock, instance=instance)
        self._listener = FleetListener(
            bus=bus, clock=clock, fleet=self.fleet, on_heard=self._on_heard
        )
        self._announcer = Announcer(bus=bus, clock=clock, describe=self._describe)
        self._endings = Endings(
            bus=bus, store=store, clock=clock, fleet=self.fleet, chronicle=self._chronicle
        )
        self._unfinished = Unfinished(
            store=store, clock=clock, told=self._told, over=self._endings.over
        )
        self._events: Subscription | None = None
        self._started_s = clock.monotonic()

    async def start(self) -> None:
        """Begin to listen, to scan and to reconcile."""
        self._started_s = self._clock.monotonic()
        await self._listener.start()
        self._events = await self._bus.subscribe(subjects.ALL_LEASE_ENDS, Event, self._on_event)
        self._tasks.spawn(self._announcer.run(), name="announce")
        self._tasks.spawn(self._scan(), name="scan")
        self._tasks.spawn(self._reconcile(), name="reconcile")
        self._state = WorkerState.READY

    async def drain(self, grace_s: float) -> None:
        """Stop to listen; there is nothing to hand over."""
        self._state = WorkerState.DRAINING
        await self._announcer.announce()
        await self._listener.close()
        if self._events is not None:
            await self._events.close()

    def readiness(self) -> tuple[bool, str]:
        """Return whether leases are watched."""
        ready = self._state is WorkerState.READY
        return ready, "" if ready else f"cleanup is {self._state}"

    def _describe(self) -> Presence:
        return Presence(ref=self._ref, state=self._state)

    # Evidence

    def _on_heard(self, member: Member) -> None:
        for watched, evidence in self.watch.hear(member.heartbeat, self._clock.monotonic()):
            self._prove(watched.ref.rid, watched.ref.attempt, watched.ref.side, watched, evidence)

    def _on_event(self, _subject: str, event: Event) -> None:
        if event.kind is not EventKind.LEASE_ENDED or event.rid is None:
            return
        lease = LeaseId(str(event.data.get("lease", "")))
        watched = self.watch.ended(lease, self._clock.monotonic())
        side = LeaseSide(str(event.data.get("side", "src")))
        why = str(event.data.get("why", ""))
        self._prove(event.rid, event.attempt, side, watched, Evidence.E1_OWNER, lease, why)

    def _prove(  # noqa: PLR0913, PLR0917 - what a proof says
        self,
        rid: RequestId,
        attempt: int,
        side: LeaseSide,
        watched: Watched | None,
        evidence: Evidence,
        lease: str = "",
        why: str = "",
    ) -> None:
        count(names.CLEANUP_FREED, evidence=str(evidence))
        if watched is not None and watched.ordered_s is not None:
            count(names.CLEANUP_RECLAIMED, outcome="freed", reason=str(evidence))
            observe(names.CLEANUP_RECLAIM_DELAY, self._clock.monotonic() - watched.ordered_s)
        self._chronicle.fact(
            EventKind.LEASE_FREED,
            rid,
            attempt,
            side=str(side),
            evidence=str(evidence),
            ordered=watched is not None and watched.ordered_s is not None,
            lease=watched.ref.lease if watched is not None else lease,
            why=why,
        )
        name = watched.ref.lease if watched is not None else lease
        self._endings.freed(rid, name, soon=why != FINISHED)

    def _hears(self, now_s: float) -> bool:
        """Return whether silence proves anything: not while deaf, nor shortly after that."""
        settled = now_s - self._started_s > _RECONCILE_S
        return self._bus.connected and settled and self.fleet.listening_s(now_s) >= DEAD_S

    # Orders

    async def _scan(self) -> None:
        while True:
            await self._clock.sleep(_SCAN_S)
            now = self._clock.monotonic()
            if self._hears(now):
                for watched, evidence in self.watch.sweep(self.fleet, now):
                    ref = watched.ref
                    self._prove(ref.rid, ref.attempt, ref.side, watched, evidence)
            old = [watched for watched in self.watch if now - watched.seen_s > _GRACE_S]
            # Together: an owner that does not answer must not keep the others waiting.
            for first in range(0, len(old), _AT_ONCE):
                some = old[first : first + _AT_ONCE]
                await asyncio.gather(*(self._consider(watched) for watched in some))
            await self._endings.settle(self._unfinished.since)

    async def _consider(self, watched: Watched) -> None:
        now = self._clock.monotonic()
        if watched.ordered_s is not None and now - watched.ordered_s < _ORDER_EVERY_S:
            return
        try:
            found = await self._store.get(watched.ref.rid)
        except (BusDown, RequestTimeout):
            return
        reason = _orphaned(watched, found.value if found else None)
        if reason is None:
            return
        if watched.orders == 0:
            count(names.CLEANUP_ORPHANS, reason=reason)
        ref = watched.ref
        facts: dict[str, Attribute] = {
            attributes.REQUEST_ID: ref.rid,
            attributes.ATTEMPT: ref.attempt,
            attributes.LEASE_SIDE: str(ref.side),
            attributes.LEASE_AGE_S: round(ref.age_s, 3),
        }
        # Nobody waits for this: it is no part of the request's trace, but points to it.
        origin = found.value.traceparent if found else None
        with linked_root(names.SPAN_CLEANUP_RECLAIM, (origin, None), facts):
            await self._order(watched, reason)

    async def _order(self, watched: Watched, reason: str) -> None:
        watched.ordered_s = self._clock.monotonic()
        watched.orders += 1
        order = Abort(rid=watched.ref.rid, attempt=watched.ref.attempt, reason=reason)
        subject = subjects.worker(watched.owner, "release")
        outcome = "obeyed"
        try:
            await self._bus.request(subject, order, Aborted, timeout_s=_RPC_S)
        except (BusError, PdbusError) as error:
            outcome = type(error).__name__
            get_logger().warning("release not obeyed", rid=watched.ref.rid, error=str(error))
        set_attributes(**{attributes.RECLAIM_OUTCOME: outcome})
        count(names.CLEANUP_ORDERS, outcome=outcome, role=str(watched.owner.role))

    # Requests

    def _consider_ended(self, record: RequestRecord) -> None:
        """Prove what is still unproved of an ended request, from liveness and inventories."""
        now = self._clock.monotonic()
        if not self._hears(now) or not record.ended:
            return
        cleaned = {LeaseSide.SRC: record.cleaned.src, LeaseSide.DST: record.cleaned.dst}
        for side, evidence in proved_free(record, self.fleet, now).items():
            # What is written as clean may still have to be told.
            if not cleaned[side] or not self._endings.told(record, side):
                lease = lease_of(record, side) or ""
                self._prove(record.rid, record.attempt, side, None, evidence, lease)

    async def _reconcile(self) -> None:
        while True:
            await self._clock.sleep(_RECONCILE_S / 2)
            try:
                await self._unfinished.look()
            except (BusDown, RequestTimeout) as error:
                self._endings.ledger_away()
                get_logger().info("reconcile put off", error=str(error))
                continue
            for record in self._unfinished:
                await self._endings.consider(record)
                self._consider_ended(record)
            self._endings.ask_of_lost(self._unfinished)

    def _told(self, record: RequestRecord) -> bool:
        return all(self._endings.told(record, side) for side in LeaseSide)


def _orphaned(watched: Watched, record: RequestRecord | None) -> str | None:
    """Return why a lease should not exist any more, or None."""
    if record is None:
        return "no record"
    if record.ended:
        return f"the request is {record.state}"
    if record.attempt > watched.ref.attempt:
        return "a newer attempt runs"
    return None
