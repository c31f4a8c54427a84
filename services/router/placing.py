"""Places one attempt: choose, reserve decode first, write the ledger, answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from libs.bus.api import (
    Bus,
    BusDown,
    BusError,
    Conflict,
    NoResponders,
    RequestTimeout,
    Store,
    StoreUnknown,
    TooLarge,
    Versioned,
)
from libs.clock.api import Clock
from libs.fleet import Fleet
from libs.telemetry import Attribute, attributes, count, get_logger, names, observe, span
from proto import subjects
from proto.control import Abort, Aborted
from proto.decode import Reserve, Reserved
from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId, new_room
from proto.ledger import Mode, Placement, RequestRecord, RequestState
from proto.router import Place, Placed, Plan
from services.router.candidates import Pending, candidates
from services.router.policies import Candidate, Policy, Score
from services.router.turns import Turns

__all__ = ["Placing"]

_POLICY = "least_loaded"
_RPC_S = 0.5
_START_WINDOW_S = 5.0
"""A reservation dies this long after the plan unless its start has come."""
_UNSEEN_S = (0.02, 0.05, 0.1, 0.2)
"""Pauses between reads of a record that was just created: a reader may lag behind the writer."""
_SKIP = frozenset(
    {
        ErrorCode.SATURATED,
        ErrorCode.STARTING,
        ErrorCode.DRAINING,
        ErrorCode.VERSION_MISMATCH,
        ErrorCode.CANCELLED,
    }
)
"""Refusals of one worker after which the next one is asked. `cancelled` is among them because it
can be the echo of a reservation given back; a request that was really cancelled has an ended
record, which is checked before, in between and after."""


@dataclass(slots=True, eq=False)
class _Wait:
    """One ask that waits for a slot."""

    ask: Place
    new: bool
    """Its first slice."""
    cancelled: bool = False


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
        self._bus = bus
        self._store = store
        self._clock = clock
        self._fleet = fleet
        self._pending = pending
        self._turns = turns
        self._policy = policy
        self._assigned = assigned
        self._waits: list[_Wait] = []

    def cancel(self, rid: RequestId, attempt: int) -> None:
        """Take an attempt that is over out of the queue, and out of the way of those behind it."""
        waiting = [wait for wait in self._waits if wait.ask.rid == rid]
        over = [wait for wait in waiting if wait.ask.attempt <= attempt]
        for wait in over:
            wait.cancelled = True
        if over or not waiting:
            # Between two slices nobody waits for it here, and yet it has a turn.
            self._turns.leave(rid, for_good=True)

    async def place(self, ask: Place) -> Placed:
        """Return the plan of an attempt; the same ask again gives the same plan.

        Raises:
            PdbusError: no_worker, version_mismatch, saturated (the queue is full), cancelled,
                stale_attempt, unknown_request, prefill_lost, bus_unavailable.
        """
        facts: dict[str, Attribute] = {
            attributes.REQUEST_ID: ask.rid,
            attributes.ATTEMPT: ask.attempt,
            attributes.ROUTE_POLICY: _POLICY,
        }
        with span(names.SPAN_ROUTER_PLAN, facts) as current:
            plan = await self._answer(ask)
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
        observe(names.ROUTER_DECISION_SECONDS, spent, policy=_POLICY)
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
        wait = _Wait(ask, new=self._turns.enter(ask.rid, ask.priority))
        self._waits.append(wait)
        over = True
        try:
            held = await self._wait_for_slot(wait)
            over = held is not None
        finally:
            waited = self._turns.waited_s(ask.rid)
            self._turns.leave(ask.rid, for_good=over)
            self._waits.remove(wait)
        if held is None:
            return None
        chosen, reserved, tried = held
        placement = self._placement(ask, chosen)
        try:
            written = await self._write(ask, placement, found)
        except PdbusError:
            await self._give_back(ask, chosen)
            raise
        if written is not placement:
            # The same ask was answered elsewhere; the slot is one if decode is the same.
            if written.decode != placement.decode:
                await self._give_back(ask, chosen)
            return self._plan(written)
        self._pending.add(chosen, ask.prompt_tokens)
        score = self._policy(ask, chosen)
        plan = self._plan(placement)
        return msgspec.structs.replace(
            plan,
            write_by_ms=reserved.write_by_ms,
            queued_s=round(waited, 6),
            candidates=tried,
            terms=score.terms,
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

    # Choosing and reserving

    async def _wait_for_slot(self, wait: _Wait) -> tuple[Candidate, Reserved, int] | None:
        ask = wait.ask
        while True:
            if wait.cancelled:
                raise PdbusError(ErrorCode.CANCELLED, "it ended while it waited for a slot")
            first = self._turns.is_first(ask.rid)
            if first or wait.new:
                found = candidates(ask, self._fleet, self._pending, self._clock.monotonic())
                if wait.new:
                    self._check_queue(ask, found)
                    wait.new = False
                reserved = (
                    await self._reserve_best(ask, self._ranked(ask, found)) if first else None
                )
                if reserved is not None:
                    return reserved[0], reserved[1], len(found)
            left_s = (ask.not_after_ms - self._clock.unix_ms()) / 1000
            if left_s <= 0:
                return None
            await self._turns.changed(ask.rid, min(left_s, 0.25))

    def _check_queue(self, ask: Place, found: Sequence[Candidate]) -> None:
        # Asked at the first arrival only: who waits is never refused in favour of who comes.
        slots = {c.decode.incarnation: c.decode.load.slots for c in found if c.decode.load}
        ahead = self._turns.ahead(ask.rid)
        if ahead > 2 * sum(slots.values()):
            raise PdbusError(ErrorCode.SATURATED, f"{ahead} requests wait already", retry_after_s=2)

    def _ranked(self, ask: Place, found: Sequence[Candidate]) -> list[Candidate]:
        def key(candidate: Candidate) -> tuple[float, int, int]:
            # Among equals, whoever was used longest ago: else one would get all work of a quiet
            # system.
            score: Score = self._policy(ask, candidate)
            prefill = candidate.prefill
            return (
                score.total,
                self._pending.last(candidate.decode.incarnation),
                self._pending.last(prefill.incarnation) if prefill else 0,
            )

        # A fixed order first: it decides between those that were never used.
        return sorted(sorted(found, key=_name), key=key)

    async def _reserve_best(
        self, ask: Place, ranked: Sequence[Candidate]
    ) -> tuple[Candidate, Reserved] | None:
        full: set[str] = set()
        cancelled = False
        for candidate in ranked:
            if candidate.decode.incarnation in full:
                continue
            try:
                return candidate, await self._reserve(ask, candidate)
            except NoResponders:
                # Its incarnation is gone; its heartbeat has not told yet.
                self._fleet.shun(candidate.decode.ref)
            except (RequestTimeout, TooLarge) as error:
                get_logger().warning("reserve failed", rid=ask.rid, error=str(error))
                # A reservation that was made all the same is used again or dies by itself.
                self._fleet.shun(candidate.decode.ref)
            except PdbusError as refusal:
                count(names.ROUTER_RESERVE_FAILURES, error_code=str(refusal.code))
                if refusal.code not in _SKIP:
                    raise
                cancelled = cancelled or refusal.code is ErrorCode.CANCELLED
            full.add(candidate.decode.incarnation)
        if cancelled:
            # If it was really cancelled, it must not keep those behind it waiting.
            await self._record(ask)
        return None

    async def _reserve(self, ask: Place, candidate: Candidate) -> Reserved:
        reserve = Reserve(
            rid=ask.rid,
            attempt=ask.attempt,
            tokens=ask.prompt_tokens + ask.max_tokens,
            compat=candidate.compat,
            not_after_ms=self._clock.unix_ms() + int(_START_WINDOW_S * 1000),
            deadline_ms=ask.deadline_ms,
        )
        subject = subjects.worker(candidate.decode.ref, "reserve")
        return await self._bus.request(subject, reserve, Reserved, timeout_s=_RPC_S)

    async def _give_back(self, ask: Place, candidate: Candidate) -> None:
        abort = Abort(rid=ask.rid, attempt=ask.attempt, reason="not placed here")
        subject = subjects.worker(candidate.decode.ref, "abort")
        try:
            await self._bus.request(subject, abort, Aborted, timeout_s=_RPC_S)
        except (BusError, PdbusError) as error:
            # The reservation dies by decode's own clock.
            get_logger().info("reservation not given back", rid=ask.rid, error=str(error))

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


def _name(candidate: Candidate) -> tuple[str, str]:
    prefill = candidate.prefill
    return candidate.decode.incarnation, prefill.incarnation if prefill else ""


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
