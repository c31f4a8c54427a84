"""Starts both sides of an attempt, and stops them."""

from __future__ import annotations

import asyncio

from libs.bus.api import Bus, BusDown, BusError, NoResponders, RequestTimeout, TooLarge
from libs.clock.api import Clock
from libs.telemetry import get_logger
from proto import subjects
from proto.base import Message
from proto.control import Abort, Aborted, Started
from proto.decode import DecodeStart
from proto.errors import ErrorCode, PdbusError
from proto.ledger import Placement
from proto.prefill import PrefillStart, ReplyTo
from proto.router import Plan
from proto.workers import Role, WorkerRef
from services.gateway.api import Call

__all__ = ["AttemptLost", "start_both", "stop_both"]

_RPC_S = 1.0
_TRIES = 2
_PAUSE_S = 0.1
_WINDOW_MS = 5_000


class AttemptLost(Exception):
    """An attempt is over before its end; the request may have another."""

    def __init__(self, code: ErrorCode, detail: str, *suspects: WorkerRef) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.suspects = suspects
        """Incarnations that the next attempt should avoid."""


async def start_both(
    *, bus: Bus, clock: Clock, call: Call, plan: Plan, reply: ReplyTo, offset: int
) -> None:
    """Start decode and prefill at once; the same starts sent twice run once.

    Raises:
        AttemptLost: one side could not be started.
        PdbusError: a side refused the request for good.
    """
    placement = plan.placement
    not_after = min(clock.unix_ms() + _WINDOW_MS, call.deadline_ms)
    decode = _decode_start(call, plan, reply, not_after, offset)
    if placement.prefill is None:
        await _start(bus, clock, placement.decode, decode)
        return
    prefill = _prefill_start(call, plan, reply, not_after)
    starting = _start(bus, clock, placement.prefill, prefill)
    beside = asyncio.get_running_loop().create_task(starting, name="start prefill")
    failure: BaseException | None = None
    try:
        try:
            await _start(bus, clock, placement.decode, decode)
        except (AttemptLost, PdbusError) as error:
            failure = error
        # What became of the other is known before anything is done about the one.
        try:
            await beside
        except (AttemptLost, PdbusError) as error:
            failure = failure or error
    except BaseException:
        beside.cancel()
        await asyncio.wait((beside,))
        raise
    if failure is not None:
        raise failure


async def stop_both(bus: Bus, clock: Clock, call: Call, placement: Placement, reason: str) -> None:
    """Tell both sides to stop an attempt, and wait for their word for at most two seconds.

    What cannot be reached is ordered again by cleanup.
    """
    sides = [placement.decode, placement.prefill]
    abort = Abort(rid=call.rid, attempt=placement.attempt, reason=reason)
    await asyncio.gather(*(_stop(bus, clock, side, abort) for side in sides if side is not None))


async def _start(bus: Bus, clock: Clock, ref: WorkerRef, message: Message) -> None:
    lost = ErrorCode.PREFILL_LOST if ref.role is Role.PREFILL else ErrorCode.DECODE_LOST
    detail = ""
    for turn in range(_TRIES):
        if turn:
            await clock.sleep(_PAUSE_S)
        try:
            await bus.request(subjects.worker(ref, "start"), message, Started, timeout_s=_RPC_S)
        except (NoResponders, RequestTimeout) as error:
            detail = f"start: {error}"
        except BusDown as error:
            raise PdbusError(ErrorCode.BUS_LOST, str(error), retry_after_s=1) from error
        except TooLarge as error:
            text = f"The prompt is too large for the message bus: {error}."
            raise PdbusError(ErrorCode.REQUEST_TOO_LARGE, text, param="messages") from error
        except PdbusError as refusal:
            if refusal.code is ErrorCode.CANCELLED or not _transient(refusal.code):
                raise
            raise AttemptLost(lost, f"start refused: {refusal}", ref) from refusal
        else:
            return
    raise AttemptLost(lost, detail, ref)


def _transient(code: ErrorCode) -> bool:
    return code in {ErrorCode.DRAINING, ErrorCode.STARTING, ErrorCode.STALE_ATTEMPT}


async def _stop(bus: Bus, clock: Clock, ref: WorkerRef, abort: Abort) -> None:
    for turn in range(_TRIES):
        if turn:
            await clock.sleep(_PAUSE_S)
        try:
            await bus.request(subjects.worker(ref, "abort"), abort, Aborted, timeout_s=_RPC_S)
        except NoResponders:
            # That incarnation is gone, and its memory with it.
            return
        except (BusError, PdbusError) as error:
            get_logger().info("abort not confirmed", rid=abort.rid, error=str(error))
        else:
            return


def _decode_start(
    call: Call, plan: Plan, reply: ReplyTo, not_after_ms: int, offset: int
) -> DecodeStart:
    placement = plan.placement
    return DecodeStart(
        rid=call.rid,
        attempt=placement.attempt,
        mode=placement.mode,
        room=placement.room,
        input_ids=call.input_ids,
        sampling=call.sampling,
        reply=reply,
        compat=placement.compat,
        not_after_ms=not_after_ms,
        deadline_ms=call.deadline_ms,
        source=plan.source,
        offset=offset,
        parsing=call.parsing,
        cache_salt=call.cache_salt,
    )


def _prefill_start(call: Call, plan: Plan, reply: ReplyTo, not_after_ms: int) -> PrefillStart:
    placement = plan.placement
    return PrefillStart(
        rid=call.rid,
        attempt=placement.attempt,
        room=placement.room,
        input_ids=call.input_ids,
        sampling=call.sampling,
        reply=reply,
        compat=placement.compat,
        not_after_ms=not_after_ms,
        deadline_ms=call.deadline_ms,
        write_by_ms=call.deadline_ms if plan.write_by_ms is None else plan.write_by_ms,
        asker=placement.decode.incarnation,
        cache_salt=call.cache_salt,
    )
