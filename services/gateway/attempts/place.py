"""Asks the router for a place, in slices, for as long as waiting makes sense."""

from __future__ import annotations

import msgspec

from libs.bus.api import Bus, BusDown, NoResponders, RequestTimeout, Versioned
from libs.clock.api import Clock
from proto import subjects
from proto.errors import ErrorCode, PdbusError
from proto.ledger import RequestRecord, Sink
from proto.router import Place, Placed, Plan
from proto.workers import WorkerRef
from services.gateway.api import Call

__all__ = ["find_place"]

_SLICE_MS = 800
_RPC_S = 1.2
_QUEUE_S = 10.0
_NO_ROUTER_S = 3.0
_NO_BUS_S = 1.0
_PAUSE_S = 0.1


async def find_place(  # noqa: PLR0913 - the ports, the attempt, and what is known of it
    *,
    bus: Bus,
    clock: Clock,
    call: Call,
    attempt: int,
    sink: Sink,
    exclude: tuple[WorkerRef, ...],
    known: Versioned[RequestRecord] | None = None,
) -> Plan:
    """Return where an attempt runs; waits in the router's queue for at most ten seconds.

    `known` is the record, if it was written a moment ago: the router then need not read it.

    Raises:
        PdbusError: saturated, no_worker, no_router, version_mismatch, bus_unavailable, deadline.
    """
    began = clock.monotonic()
    left_s = (call.deadline_ms - clock.unix_ms()) / 1000
    queue_until = began + min(_QUEUE_S, left_s / 2)
    answered = began
    while True:
        now = clock.monotonic()
        asked, known = known, None
        try:
            placed = await bus.request(
                subjects.ROUTER_PLACE,
                _with_record(_ask(call, attempt, sink, exclude, clock), asked),
                Placed,
                timeout_s=_RPC_S,
            )
        except (NoResponders, RequestTimeout) as error:
            if clock.monotonic() - answered > _NO_ROUTER_S:
                raise PdbusError(ErrorCode.NO_ROUTER, str(error), retry_after_s=1) from error
            await clock.sleep(_PAUSE_S)
            continue
        except BusDown as error:
            if bus.down_s > _NO_BUS_S:
                raise PdbusError(ErrorCode.BUS_UNAVAILABLE, str(error), retry_after_s=1) from error
            await clock.sleep(_PAUSE_S)
            continue
        if placed.plan is not None:
            return placed.plan
        answered = now = clock.monotonic()
        if now >= queue_until:
            detail = f"no slot was freed in {now - began:.1f} s"
            raise PdbusError(ErrorCode.SATURATED, detail, retry_after_s=2)


def _with_record(ask: Place, known: Versioned[RequestRecord] | None) -> Place:
    if known is None:
        return ask
    return msgspec.structs.replace(ask, record=known.value, revision=known.revision)


def _ask(
    call: Call, attempt: int, sink: Sink, exclude: tuple[WorkerRef, ...], clock: Clock
) -> Place:
    return Place(
        rid=call.rid,
        attempt=attempt,
        model=call.model,
        prompt_tokens=call.prompt_tokens,
        max_tokens=call.sampling.max_tokens,
        sink=sink,
        deadline_ms=call.deadline_ms,
        not_after_ms=clock.unix_ms() + _SLICE_MS,
        mode=call.mode,
        exclude=exclude,
        priority=call.priority,
    )
