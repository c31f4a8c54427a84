"""Reserves a decode slot for an attempt: at once where nobody waits, else in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from libs.bus.api import Bus, BusError, NoResponders, RequestTimeout, TooLarge
from libs.clock.api import Clock
from libs.fleet import Fleet
from libs.telemetry import count, get_logger, names
from proto import subjects
from proto.control import Abort, Aborted
from proto.decode import Reserve, Reserved
from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId
from proto.router import Place
from services.router.candidates import Pending, Places
from services.router.policies import Candidate, Policy, Score
from services.router.turns import Turns

__all__ = ["Held", "Holding"]

_RPC_S = 0.5
_START_WINDOW_S = 5.0
"""A reservation dies this long after the plan unless its start has come."""
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
    """One ask that has no slot yet."""

    ask: Place
    came_s: float
    new: bool = True
    """Its first slice."""
    cancelled: bool = False


class Held(msgspec.Struct, frozen=True):
    """A slot that is reserved for an ask."""

    place: Candidate
    score: Score
    reserved: Reserved
    tried: int
    """How many places there were to choose from."""
    waited_s: float = 0.0


class Holding:
    """Slots for asks.

    Args:
        check: raises if the request of an ask is over.
    """

    def __init__(  # noqa: PLR0913 - the ports and the router's soft state
        self,
        *,
        bus: Bus,
        clock: Clock,
        fleet: Fleet,
        pending: Pending,
        turns: Turns,
        policy: Policy,
        check: Callable[[Place], Awaitable[object]],
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._fleet = fleet
        self._pending = pending
        self._places = Places(fleet, pending)
        self._turns = turns
        self._policy = policy
        self._check = check
        self._waits: list[_Wait] = []
        self._flying = 0
        """Asks that reserve without a turn. They came before all who wait for one."""

    def cancel(self, rid: RequestId, attempt: int) -> None:
        """Take an attempt that is over out of the queue, and out of the way of those behind it."""
        waiting = [wait for wait in self._waits if wait.ask.rid == rid]
        over = [wait for wait in waiting if wait.ask.attempt <= attempt]
        for wait in over:
            wait.cancelled = True
        if over or not waiting:
            # Between two slices nobody waits for it here, and yet it has a turn.
            self._turns.leave(rid, for_good=True)

    async def hold(self, ask: Place) -> Held | None:
        """Reserve a slot; return None if there was none in time, and the ask keeps its turn.

        Raises:
            PdbusError: no_worker, version_mismatch, saturated (the queue is full), cancelled, or
                what a worker refuses for good.
            BusDown.
        """
        wait = _Wait(ask, self._clock.monotonic())
        self._waits.append(wait)
        try:
            held = await self._hold_at_once(wait)
            return held or await self._hold_in_turn(wait)
        finally:
            self._waits.remove(wait)

    async def _hold_at_once(self, wait: _Wait) -> Held | None:
        """Reserve where nobody waits and a slot is free as far as it is known: no turn is needed.

        Others may do so at the same time. Who comes to wait meanwhile lets them go first.
        """
        ask = wait.ask
        if self._turns or self._turns.keeps(ask.rid):
            return None
        found = self._places.find(ask, self._clock.monotonic())
        best = self._ranked(ask, found)[:1]
        load = best[0][0].decode.load
        if load is None or load.slots_free <= best[0][0].decode_pending:
            return None
        # Counted before it is certain: who comes in the same moment must choose another.
        self._pending.add(best[0][0], ask.prompt_tokens)
        self._flying += 1
        held = None
        try:
            held = await self._reserve_best(ask, best, len(found))
        finally:
            self._flying -= 1
            if held is None:
                self._pending.take_back(best[0][0], ask.prompt_tokens)
            if not self._flying:
                self._turns.wake()
        return held

    async def _hold_in_turn(self, wait: _Wait) -> Held | None:
        ask = wait.ask
        wait.new = self._turns.enter(ask.rid, ask.priority, wait.came_s)
        over = True
        try:
            held = await self._wait_for_slot(wait)
            over = held is not None
            if held is None:
                return None
            self._pending.add(held.place, ask.prompt_tokens)
            return msgspec.structs.replace(held, waited_s=self._turns.waited_s(ask.rid))
        finally:
            self._turns.leave(ask.rid, for_good=over)

    async def _wait_for_slot(self, wait: _Wait) -> Held | None:
        ask = wait.ask
        while True:
            if wait.cancelled:
                raise PdbusError(ErrorCode.CANCELLED, "it ended while it waited for a slot")
            first = not self._flying and self._turns.is_first(ask.rid)
            if first or wait.new:
                found = self._places.find(ask, self._clock.monotonic())
                if wait.new:
                    self._check_queue(ask, found)
                    wait.new = False
                if first:
                    ranked = self._ranked(ask, found)
                    held = await self._reserve_best(ask, ranked, len(found))
                    if held is not None:
                        return held
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

    def _ranked(self, ask: Place, found: Sequence[Candidate]) -> list[tuple[Candidate, Score]]:
        """Return the places with their scores, the best first."""

        def key(scored: tuple[Candidate, Score]) -> tuple[float, int, int]:
            # Among equals, whoever was used longest ago: else one would get all work of a quiet
            # system. Between those that were never used the order of their names decides.
            place, score = scored
            prefill = place.prefill
            return (
                score.total,
                self._pending.last(place.decode.incarnation),
                self._pending.last(prefill.incarnation) if prefill else 0,
            )

        scored = [(place, self._policy(ask, place)) for place in found]
        return sorted(scored, key=key) if len(scored) > 1 else scored

    async def _reserve_best(
        self, ask: Place, ranked: Sequence[tuple[Candidate, Score]], tried: int
    ) -> Held | None:
        full: set[str] = set()
        cancelled = False
        for candidate, score in ranked:
            if candidate.decode.incarnation in full:
                continue
            try:
                return Held(candidate, score, await self._reserve(ask, candidate), tried)
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
            await self._check(ask)
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

    async def give_back(self, ask: Place, candidate: Candidate) -> None:
        """Free the slot of an ask that was not placed there after all."""
        self._pending.take_back(candidate, ask.prompt_tokens)
        abort = Abort(rid=ask.rid, attempt=ask.attempt, reason="not placed here")
        subject = subjects.worker(candidate.decode.ref, "abort")
        try:
            await self._bus.request(subject, abort, Aborted, timeout_s=_RPC_S)
        except (BusError, PdbusError) as error:
            # The reservation dies by decode's own clock.
            get_logger().info("reservation not given back", rid=ask.rid, error=str(error))
