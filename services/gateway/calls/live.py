"""One call from its acceptance to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from libs.bus.api import Bus, BusDown
from libs.chronicle import Chronicle
from libs.clock.api import Clock
from libs.lifecycle.tasks import Tasks
from libs.telemetry import count, get_logger, names
from proto import subjects
from proto.control import Cancel
from proto.errors import ErrorCode, PdbusError, spec_of
from proto.events import EventKind
from proto.gateway import TokenChunk
from proto.ids import RequestId, new_nonce
from proto.ledger import Placement, RequestRecord, RequestState, Usage
from proto.prefill import ReplyTo
from proto.router import Plan
from proto.workers import WorkerRef
from services.gateway.api import Call, Delta
from services.gateway.calls.assembler import Assembler
from services.gateway.calls.follow import Follower
from services.gateway.calls.ledger import Ending, Ledger
from services.gateway.calls.mailroom import Mailroom
from services.gateway.calls.place import find_place
from services.gateway.calls.start import AttemptLost, start_both, stop_both

__all__ = ["LiveCall", "Ports"]

_MOST_ATTEMPTS = 2
_RETRY_NEEDS_S = 1.0
_END_S = 2.0
_END_LATER_S = 30.0


@dataclass(frozen=True, slots=True)
class Ports:
    """What a call needs to be carried out."""

    bus: Bus
    clock: Clock
    tasks: Tasks
    ledger: Ledger
    mailroom: Mailroom
    chronicle: Chronicle


class LiveCall:
    """Owns one request: its attempts run in a task of its own, its reader takes deltas."""

    def __init__(self, ports: Ports, call: Call) -> None:
        self._ports = ports
        self._call = call
        self._assembler = Assembler()
        self._plan: Plan | None = None
        self._outbox: deque[Delta] = deque()
        self._failure: PdbusError | None = None
        self._ended = False
        self._cancelled = False
        self._changed = asyncio.Event()
        self._started: asyncio.Event = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None

    # What the reader sees

    @property
    def rid(self) -> RequestId:
        """The id of the request."""
        return self._call.rid

    @property
    def placement(self) -> Placement:
        """Where the newest attempt runs; valid once the call was started."""
        if self._plan is None:
            raise PdbusError(ErrorCode.INTERNAL, "the call has no place yet")
        return self._plan.placement

    @property
    def pending(self) -> bool:
        """Whether `deltas` would yield, end or raise without waiting."""
        return bool(self._outbox) or self._ended

    async def open(self) -> None:
        """Accept the call and wait until both sides have started it.

        Raises:
            PdbusError: refused or failed before any token.
        """
        self._driver = self._ports.tasks.spawn(self._drive(), name="call")
        try:
            await self._started.wait()
        except asyncio.CancelledError:
            await self.cancel("the client went away")
            raise
        if self._failure is not None:
            raise self._failure

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield the answer; ends after the delta with `finish`.

        Raises:
            PdbusError: the request failed; what was yielded before is all there is.
        """
        while True:
            while self._outbox:
                yield self._outbox.popleft()
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    async def cancel(self, reason: str) -> None:
        """Give the request up; idempotent, harmless after its end."""
        if self._ended or self._cancelled:
            return
        self._cancelled = True
        if self._driver is not None:
            self._driver.cancel()
        self._close(PdbusError(ErrorCode.CANCELLED, reason))
        self._ports.tasks.spawn(self._undo(reason), name="cancel call")

    # Driving the attempts

    async def _drive(self) -> None:
        ports, call = self._ports, self._call
        try:
            await ports.ledger.accept(call)
            ports.chronicle.fact(
                EventKind.REQUEST_ACCEPTED,
                call.rid,
                prompt_tokens=call.prompt_tokens,
                max_tokens=call.sampling.max_tokens,
                model=call.model,
            )
            await self._attempts()
        except PdbusError as error:
            await self._fail(error)
        finally:
            if not self._ended:
                # A defect of ours, or the service stops: the reader must never wait for ever.
                ports.tasks.spawn(
                    self._fail(PdbusError(ErrorCode.INTERNAL, "the call broke off")),
                    name="broken call",
                )

    async def _attempts(self) -> None:
        lost: AttemptLost | None = None
        for number in range(_MOST_ATTEMPTS):
            exclude = lost.suspects if lost else ()
            try:
                await self._attempt(number, exclude)
            except AttemptLost as error:
                lost = error
                count(names.GATEWAY_ATTEMPTS, outcome="lost", error_code=str(error.code))
                get_logger().warning(
                    "attempt lost", rid=self.rid, attempt=number, code=error.code, why=error.detail
                )
                await self._stop(f"attempt lost: {error.code}")
                if not self._may_retry(error, number):
                    raise PdbusError(error.code, error.detail) from error
            except PdbusError as error:
                if lost is not None and error.code in _NO_PLACE:
                    # The cause is what the client should hear, not that there was no second place.
                    raise PdbusError(lost.code, lost.detail) from error
                raise
            else:
                count(names.GATEWAY_ATTEMPTS, outcome="done", error_code="")
                return

    def _may_retry(self, lost: AttemptLost, number: int) -> bool:
        left_s = (self._call.deadline_ms - self._ports.clock.unix_ms()) / 1000
        return (
            spec_of(lost.code).attempt_retryable
            and self._assembler.next == 0
            and number + 1 < _MOST_ATTEMPTS
            and left_s > _RETRY_NEEDS_S
        )

    async def _attempt(self, number: int, exclude: tuple[WorkerRef, ...]) -> None:
        ports, call = self._ports, self._call
        plan = await self._place(number, exclude)
        self._plan = plan
        self._assembler.begin(number)
        nonce = new_nonce(ports.clock.entropy)
        sink = ports.ledger.sink
        reply = ReplyTo(gateway=sink.gateway, incarnation=sink.incarnation, nonce=nonce)
        follower = Follower(
            bus=ports.bus,
            clock=ports.clock,
            call=call,
            placement=plan.placement,
            assembler=self._assembler,
        )
        ports.mailroom.open(nonce, follower.deliver)
        try:
            await start_both(bus=ports.bus, clock=ports.clock, call=call, plan=plan, reply=reply)
            self._started.set()
            async with aclosing(follower.chunks()) as chunks:
                async for chunk in chunks:
                    await self._take(chunk)
        finally:
            ports.mailroom.shut(nonce)

    async def _place(self, number: int, exclude: tuple[WorkerRef, ...]) -> Plan:
        ports = self._ports
        asked_ms = ports.chronicle.now_ms()
        plan = await find_place(
            bus=ports.bus,
            clock=ports.clock,
            call=self._call,
            attempt=number,
            sink=ports.ledger.sink,
            exclude=exclude,
        )
        placement = plan.placement
        facts: dict[str, str | float] = {
            "mode": str(placement.mode),
            "decode": placement.decode.instance,
            "prefill": placement.prefill.instance if placement.prefill else "",
            "queued_s": plan.queued_s,
            "candidates": plan.candidates,
        }
        facts.update({f"score.{term.name}": round(term.value, 4) for term in plan.terms})
        now_ms = ports.chronicle.now_ms()
        ports.chronicle.stage(EventKind.STAGE_PLACE, self.rid, number, asked_ms, now_ms, **facts)
        ports.chronicle.fact(EventKind.REQUEST_ASSIGNED, self.rid, number, **facts)
        return plan

    async def _take(self, chunk: TokenChunk) -> None:
        if chunk.offset == 0 and chunk.count:
            self._ports.chronicle.fact(EventKind.REQUEST_STREAMING, self.rid, chunk.attempt)
        if chunk.finish is None:
            self._outbox.append(Delta(chunk.ids, chunk.text))
            self._changed.set()
            return
        usage = Usage(
            prompt_tokens=self._call.prompt_tokens,
            completion_tokens=self._assembler.next,
            cached_tokens=chunk.cached_tokens,
        )
        await self._finish(chunk, usage)

    # Endings

    async def _finish(self, chunk: TokenChunk, usage: Usage) -> None:
        """Write DONE, and only then let the reader see the end."""
        record = await self._end(Ending(state=RequestState.DONE, usage=usage))
        if record is not None and record.state is not RequestState.DONE:
            raise PdbusError(record.error or ErrorCode.CANCELLED, "it was ended elsewhere")
        self._ports.chronicle.fact(
            EventKind.REQUEST_DONE,
            self.rid,
            chunk.attempt,
            completion_tokens=usage.completion_tokens,
            finish=str(chunk.finish),
        )
        self._outbox.append(Delta(chunk.ids, chunk.text, chunk.finish, usage))
        self._close(None)

    async def _fail(self, error: PdbusError) -> None:
        cancelled = error.code is ErrorCode.CANCELLED
        state = RequestState.CANCELLED if cancelled else RequestState.FAILED
        kind = EventKind.REQUEST_CANCELLED if cancelled else EventKind.REQUEST_FAILED
        self._ports.chronicle.fact(
            kind, self.rid, self._attempt_number, code=str(error.code), detail=error.detail
        )
        # The client hears at once; the ledger and the workers follow.
        self._close(error)
        self._ports.tasks.spawn(
            self._end(Ending(state=state, error=error.code, detail=error.detail)), name="end call"
        )
        await self._stop(str(error.code))

    async def _undo(self, reason: str) -> None:
        """End a cancelled request by three ways: ledger, broadcast, and both workers by name."""
        await asyncio.gather(self._end_cancelled(reason), self._stop(reason))

    async def _end_cancelled(self, reason: str) -> None:
        ending = Ending(state=RequestState.CANCELLED, error=ErrorCode.CANCELLED, detail=reason)
        record = await self._end(ending)
        kind = EventKind.REQUEST_CANCELLED
        if record is not None and record.state is RequestState.DONE:
            # The answer was complete in the ledger before its reader left.
            kind = EventKind.REQUEST_DONE
        self._ports.chronicle.fact(kind, self.rid, self._attempt_number, reason=reason)

    async def _stop(self, reason: str) -> None:
        """Make sure that nothing runs any more for the newest attempt."""
        if self._plan is None:
            return
        call, placement = self._call, self._plan.placement
        cancel = Cancel(rid=call.rid, attempt=placement.attempt, reason=reason)
        try:
            await self._ports.bus.publish(subjects.cancel(call.tenant, call.rid), cancel)
        except BusDown:
            get_logger().info("cancel not broadcast", rid=call.rid)
        await stop_both(self._ports.bus, self._ports.clock, call, placement, reason)

    async def _end(self, ending: Ending) -> RequestRecord | None:
        """Write the ending; if the ledger is away, go on trying without keeping the client."""
        record = await self._ports.ledger.end(self.rid, ending, within_s=_END_S)
        if record is None:
            later = self._ports.ledger.end(self.rid, ending, within_s=_END_LATER_S)
            self._ports.tasks.spawn(later, name="end call later")
        return record

    @property
    def _attempt_number(self) -> int:
        return self._plan.placement.attempt if self._plan else 0

    def _close(self, failure: PdbusError | None) -> None:
        self._failure = failure
        self._ended = True
        self._started.set()
        self._changed.set()


_NO_PLACE = frozenset({ErrorCode.NO_WORKER, ErrorCode.SATURATED, ErrorCode.VERSION_MISMATCH})
