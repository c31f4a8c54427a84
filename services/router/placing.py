"""Places one attempt: choose, reserve decode first, write the ledger, answer."""

from __future__ import annotations

from collections.abc import Callable

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
from libs.clock.api import Clock
from libs.fleet import Fleet
from libs.telemetry import (
    Attribute,
    attributes,
    count,
    names,
    observer,
    recording,
    span,
)
from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId, new_room
from proto.ledger import Mode, Placement, RequestRecord, RequestState
from proto.router import Place, Placed, Plan
from services.router.candidates import Pending
from services.router.holding import Holding
from services.router.policies import Candidate, Policy
from services.router.turns import Turns

__all__ = ["Placing"]

_POLICY = "least_loaded"
_UNSEEN_S = (0.02, 0.05, 0.1, 0.2)
"""Pauses between reads of a record that was just created: a reader may lag behind the writer."""


class Placing:
    """The place verb."""

    def __init__(  # noqa: PLR0913 - the ports and the router's soft state
        self,
        *,
        bus: Bus,
        store: Store[RequestRecord],
        clock: Clock,
        fleet: Fleet,
        pending: Pending,
        turns: Turns,
        policy: Policy,
        assigned: Callable[[RequestRecord, int], None] = lambda _record, _revision: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._fleet = fleet
        self._turns = turns
        self._holding = Holding(
            bus=bus,
            clock=clock,
            fleet=fleet,
            pending=pending,
            turns=turns,
            policy=policy,
            check=self._record,
        )
        self._assigned = assigned
        self._observe = observer(names.ROUTER_DECISION_SECONDS, policy=_POLICY)

    def cancel(self, rid: RequestId, attempt: int) -> None:
        """Take an attempt that is over out of the queue, and out of the way of those behind it."""
        self._holding.cancel(rid, attempt)

    async def place(self, ask: Place) -> Placed:
        """Return the plan of an attempt; the same ask again gives the same plan.

        Raises:
            PdbusError: no_worker, version_mismatch, saturated (the queue is full), cancelled,
                stale_attempt, unknown_request, prefill_lost, bus_unavailable.
        """
        with span(names.SPAN_ROUTER_PLAN, _asked(ask) if recording() else None) as current:
            plan = await self._answer(ask)
            if current.is_recording():
                current.set_attributes(_facts(plan))
        return Placed(plan=plan, ahead=0 if plan else max(0, len(self._turns) - 1))

    async def _answer(self, ask: Place) -> Plan | None:
        began = self._clock.monotonic()
        try:
            plan = await self._place(ask)
        except PdbusError as refusal:
            self._count(ask, "rejected", str(refusal.code))
            raise
        except (BusDown, RequestTimeout, StoreUnknown) as error:
            raise PdbusError(ErrorCode.BUS_UNAVAILABLE, str(error)) from error
        if plan is None:
            self._count(ask, "waiting", "")
            return None
        self._count(ask, "placed", "")
        spent = max(0.0, self._clock.monotonic() - began - plan.queued_s)
        self._observe(spent)
        return plan

    def _count(self, ask: Place, decision: str, code: str) -> None:
        mode = str(ask.mode) if ask.mode else "any"
        count(
            names.ROUTER_DECISIONS,
            policy=_POLICY,
            decision=decision,
            mode=mode,
            error_code=code,
        )

    async def _place(self, ask: Place) -> Plan | None:
        if ask.record is None or self._clock.unix_ms() > ask.not_after_ms:
            # A copy that comes late may be of a request that is over; what it carries cannot tell.
            found = await self._record(ask)
        else:
            found = Versioned(ask.record, ask.revision)
        if found.value.attempt == ask.attempt and found.value.placement is not None:
            return self._plan(found.value.placement)
        held = await self._holding.hold(ask)
        if held is None:
            return None
        chosen = held.place
        placement = self._placement(ask, chosen)
        try:
            written = await self._write(ask, placement, found)
        except PdbusError:
            await self._holding.give_back(ask, chosen)
            raise
        if written is not placement:
            # The same ask was answered elsewhere; the slot is one if decode is the same.
            if written.decode != placement.decode:
                await self._holding.give_back(ask, chosen)
            return self._plan(written)
        plan = self._plan(placement)
        return msgspec.structs.replace(
            plan,
            write_by_ms=held.reserved.write_by_ms,
            queued_s=round(held.waited_s, 6),
            candidates=held.tried,
            terms=held.score.terms,
        )

    async def _record(self, ask: Place) -> Versioned[RequestRecord]:
        found = await self._store.get(ask.rid)
        for pause_s in _UNSEEN_S:
            if found is not None:
                break
            await self._clock.sleep(pause_s)
            found = await self._store.get(ask.rid)
        if found is None:
            raise PdbusError(ErrorCode.UNKNOWN_REQUEST, "no record")
        if found.value.ended:
            raise PdbusError(ErrorCode.CANCELLED, f"the request is {found.value.state}")
        if found.value.sink.incarnation != ask.sink.incarnation:
            raise PdbusError(ErrorCode.STALE_ATTEMPT, "another gateway owns the request")
        if found.value.attempt > ask.attempt:
            raise PdbusError(ErrorCode.STALE_ATTEMPT, f"attempt {found.value.attempt} exists")
        return found

    # The ledger and the answer

    def _placement(self, ask: Place, chosen: Candidate) -> Placement:
        return Placement(
            attempt=ask.attempt,
            mode=Mode.DISAGGREGATED if chosen.prefill else Mode.AGGREGATED,
            decode=chosen.decode.ref,
            prefill=chosen.prefill.ref if chosen.prefill else None,
            room=new_room(self._clock.entropy),
            compat=chosen.compat,
        )

    async def _write(
        self, ask: Place, placement: Placement, known: Versioned[RequestRecord]
    ) -> Placement:
        """Write ASSIGNED; return the placement that stands, ours or an earlier one.

        Args:
            ask: what is placed.
            placement: ours.
            known: the record as it was when we looked last; it is read again if it has changed.
        """
        found: Versioned[RequestRecord] | None = known
        while True:
            found = found or await self._record(ask)
            record, revision = found.value, found.revision
            found = None
            if record.attempt == ask.attempt and record.placement is not None:
                return record.placement
            assigned = msgspec.structs.replace(
                record,
                state=RequestState.ASSIGNED,
                attempt=ask.attempt,
                placement=placement,
            )
            try:
                self._assigned(assigned, await self._store.update(ask.rid, assigned, revision))
            except Conflict:
                continue
            except StoreUnknown:
                again = await self._store.get(ask.rid)
                if again is None or again.value.placement != placement:
                    continue
            return placement

    def _plan(self, placement: Placement) -> Plan:
        source = None
        if placement.prefill is not None:
            member = self._fleet.get(placement.prefill.incarnation)
            if member is None or member.heartbeat.address is None:
                raise PdbusError(ErrorCode.PREFILL_LOST, "the prefill of this plan is gone")
            source = member.heartbeat.address
        return Plan(placement=placement, source=source)


def _asked(ask: Place) -> dict[str, Attribute]:
    return {
        attributes.REQUEST_ID: ask.rid,
        attributes.ATTEMPT: ask.attempt,
        attributes.ROUTE_POLICY: _POLICY,
    }


def _facts(plan: Plan | None) -> dict[str, Attribute]:
    """Return what the span of a decision says of it."""
    if plan is None:
        return {attributes.ROUTE_DECISION: "waiting"}
    placement = plan.placement
    facts: dict[str, Attribute] = {
        attributes.ROUTE_DECISION: "placed",
        attributes.ROUTE_CANDIDATES: plan.candidates,
        attributes.ROUTE_QUEUED_S: plan.queued_s,
        attributes.ROUTE_DECODE: placement.decode.instance,
        attributes.MODE: str(placement.mode),
    }
    if placement.prefill is not None:
        facts[attributes.ROUTE_PREFILL] = placement.prefill.instance
    return facts
