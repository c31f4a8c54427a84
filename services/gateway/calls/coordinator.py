"""Carries out calls: the part of the gateway that talks to the bus."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from libs.bus.api import Bus, Endpoint, Store, Subscription
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.fleet import Fleet
from libs.lifecycle.tasks import Tasks
from proto import subjects
from proto.errors import ErrorCode, PdbusError, spec_of
from proto.gateway import CallState, CancelCall, HoldCall
from proto.ids import Incarnation, InstanceId, RequestId, keyed_request_id
from proto.ledger import RequestRecord, RequestState, Sink
from proto.results import StoredResult
from services.gateway.api import Call
from services.gateway.attempts import Budget, Mailroom
from services.gateway.calls.guest import HOLD_S
from services.gateway.calls.live import LiveCall
from services.gateway.calls.reader import Reader
from services.gateway.calls.stored import StoredCall, fetch_result
from services.gateway.ledger import Ledger, Taken
from services.gateway.ports import Detokenizer, NoTexts, Ports

__all__ = ["CallOwner", "Coordinator"]

_FORGET_FAILURE_MS = 30_000
"""For so long the same key gives the same failure; then it may start anew."""
_MOST_GENERATIONS = 32
_ENDINGS_S = 3.0
"""How long the endings of requests that were given up may take."""


@dataclass(frozen=True, slots=True)
class CallOwner:
    """Which gateway this is."""

    instance: InstanceId
    incarnation: Incarnation


class Coordinator:
    """Opens calls, joins readers to them, and keeps count of those that run."""

    def __init__(  # noqa: PLR0913 - the ports and the identity
        self,
        *,
        bus: Bus,
        store: Store[RequestRecord],
        results: Store[StoredResult],
        clock: Clock,
        tasks: Tasks,
        fleet: Fleet,
        identity: CallOwner,
        texts: Detokenizer | None = None,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._bus = bus
        sink = Sink(gateway=identity.instance, incarnation=identity.incarnation)
        self._ledger = Ledger(store=store, clock=clock, sink=sink)
        self._mailroom = Mailroom(
            bus=bus, clock=clock, gateway=identity.instance, incarnation=identity.incarnation
        )
        self._ports = Ports(
            bus=bus,
            clock=clock,
            tasks=tasks,
            ledger=self._ledger,
            results=results,
            mailroom=self._mailroom,
            chronicle=Chronicle(bus=bus, clock=clock, instance=identity.instance),
            fleet=fleet,
            texts=texts or NoTexts(),
            budget=Budget(),
        )
        self._calls: dict[RequestId, LiveCall] = {}
        self._served: list[Subscription] = []

    @property
    def running(self) -> int:
        """Requests that run now."""
        return len(self._calls)

    async def start(self) -> None:
        """Begin to receive answers and operators' cancels."""
        await self._mailroom.start()
        me = self._identity
        for name, request, handler in (
            ("cancel", CancelCall, self._handle_cancel),
            ("hold", HoldCall, self._handle_hold),
        ):
            subject = subjects.gateway(me.instance, me.incarnation, name)
            endpoint = Endpoint(name, subject, request, handler)
            self._served.append(await self._bus.serve(endpoint))

    async def drain(self, grace_s: float) -> bool:
        """Wait for running calls, then stop receiving; return whether all ended in time."""
        settled = await self._settled(grace_s)
        for call in list(self._calls.values()):
            call.give_up()
        await self._settled(_ENDINGS_S)
        for subscription in self._served:
            await subscription.close()
        await self._mailroom.close()
        return settled

    async def _settled(self, seconds: float) -> bool:
        until = self._clock.monotonic() + seconds
        while self.running and self._clock.monotonic() < until:
            await self._clock.sleep(0.02)
        return not self.running

    async def open(self, call: Call) -> Reader:
        """Carry out a call, or join the one that its key stands for.

        Cancelling the task that waits for this cancels the request (or, with a key, leaves it).

        Raises:
            PdbusError: refused or failed before any token of the answer; with a key also
                idempotency_key_reused, already_cancelled, result_expired, or the failure that the
                request has ended with.
        """
        if call.key is None:
            return await self._begin(call, None).read()
        for generation in range(_MOST_GENERATIONS):
            rid = keyed_request_id(call.tenant, call.key, generation)
            reader = await self._open_keyed(msgspec.structs.replace(call, rid=rid))
            if reader is not None:
                return reader
        raise PdbusError(ErrorCode.INTERNAL, "this key has failed too often")

    async def _open_keyed(self, call: Call) -> Reader | None:
        """Return a reader, or None if the request of this id failed and is forgotten."""
        record = None if call.rid in self._calls else await self._ledger.find(call.rid)
        while True:
            if record is not None:
                _check_digest(record.digest, call)
                if record.ended:
                    return await self._ended(record)
            running = self._calls.get(call.rid) or self._begin(call, record)
            _check_digest(running.call.digest, call)
            try:
                return await running.read()
            except Taken as taken:
                # Another gateway was first. All who read here learn that, not only who began.
                record = taken.record

    async def _ended(self, record: RequestRecord) -> Reader | None:
        if record.state is RequestState.DONE:
            return Reader(StoredCall(await fetch_result(self._ports.results, record)))
        if record.state is RequestState.CANCELLED:
            raise PdbusError(ErrorCode.ALREADY_CANCELLED, record.detail)
        code = record.error or ErrorCode.INTERNAL
        age_ms = self._clock.unix_ms() - (record.ended_ms or record.created_ms)
        if spec_of(code).retryable and age_ms > _FORGET_FAILURE_MS:
            return None
        raise PdbusError(code, record.detail)

    def _begin(self, call: Call, joined: RequestRecord | None) -> LiveCall:
        live = LiveCall(self._ports, call, joined=joined, on_over=self._over)
        self._calls[call.rid] = live
        live.begin()
        return live

    def _over(self, live: LiveCall) -> None:
        if self._calls.get(live.rid) is live:
            del self._calls[live.rid]

    async def _handle_cancel(self, ask: CancelCall) -> CallState:
        live = self._calls.get(ask.rid)
        running = live is not None and live.cancel(ask.reason or "cancelled by an operator")
        return CallState(rid=ask.rid, running=running)

    async def _handle_hold(self, ask: HoldCall) -> CallState:
        live = self._calls.get(ask.rid)
        if live is not None:
            live.hold(HOLD_S)
        return CallState(rid=ask.rid, running=live is not None)


def _check_digest(known: str, call: Call) -> None:
    if known != call.digest:
        raise PdbusError(ErrorCode.IDEMPOTENCY_KEY_REUSED, "the body differs", param="body")
