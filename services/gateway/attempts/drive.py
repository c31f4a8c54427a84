"""Drives the attempts of one request until one of them completes the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from libs.bus.api import BusDown, Versioned
from libs.telemetry import count, get_logger, names
from proto import subjects
from proto.control import Cancel
from proto.errors import ErrorCode, PdbusError
from proto.events import EventKind
from proto.gateway import FinishReason, TokenChunk
from proto.ids import new_nonce
from proto.ledger import Cleaned, Placement, RequestRecord, Usage
from proto.prefill import ReplyTo
from proto.router import Plan
from proto.workers import WorkerRef
from services.gateway.api import Call, Part, delta_of
from services.gateway.attempts.assembler import Assembler
from services.gateway.attempts.follow import Follower
from services.gateway.attempts.place import find_place
from services.gateway.attempts.recovery import Recovery
from services.gateway.attempts.start import AttemptLost, start_both, stop_both
from services.gateway.later import later
from services.gateway.ports import Ports
from services.gateway.prompt import PromptIds

__all__ = ["Attempts", "Outcome"]

_NO_PLACE = frozenset({ErrorCode.NO_WORKER, ErrorCode.SATURATED, ErrorCode.VERSION_MISMATCH})
_MOST = 100
"""Attempt numbers have two digits."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a complete answer ended."""

    finish: FinishReason
    usage: Usage
    attempt: int
    placement: Placement | None
    """Where it ran, if it was placed for this gateway."""
    revision: int
    """Of the record when the attempt was claimed; 0 where it is not known."""
    cleaned: Cleaned
    """The sides that hold nothing any more, as they have said themselves."""


class Attempts:
    """All attempts of one call.

    Args:
        emit: takes each part of the answer, in order and once.
        shown: all parts that were emitted, by this one and those before it.
        started: called when an attempt runs on both sides.
        first: number of the first attempt; those before it count as spent.
        source: the attempt that gave the newest of it.
    """

    def __init__(  # noqa: PLR0913 - the call, and what is known of it already
        self,
        ports: Ports,
        call: Call,
        *,
        emit: Callable[[Part], None],
        shown: Sequence[Part],
        started: Callable[[], None],
        first: int = 0,
        source: int = -1,
    ) -> None:
        self.plan: Plan | None = None
        self.known: Versioned[RequestRecord] | None = None
        """The record that was just made, for the first place."""
        self._ports = ports
        self._call = call
        self._emit = emit
        self._started = started
        self._number = first
        self._unsure = False
        """A place was asked for and no answer has come: a slot may be held for the attempt."""
        self._assembler = Assembler()
        self._recovery = Recovery(
            call.recover, call.sampling, earlier=first, parsed=call.parsing is not None
        )
        self._shown = shown
        self._assembler.resume(len(self._ids()) // 4, source)

    @property
    def number(self) -> int:
        """The newest attempt."""
        return self.plan.placement.attempt if self.plan else self._number

    async def run(self, joined: Placement | None = None) -> Outcome:
        """Return when the answer is complete.

        Args:
            joined: an attempt that runs already and is followed from its beginning.

        Raises:
            PdbusError: no attempt could complete it; nothing runs any more for it.
        """
        lost: AttemptLost | None = None
        while self._number < _MOST:
            try:
                return await self._attempt(lost, joined)
            except AttemptLost as error:
                lost, joined = error, None
                await self._give_up(error)
            except PdbusError as error:
                if lost is not None and error.code in _NO_PLACE:
                    # The cause is what the client should hear, not that there is no second place.
                    raise PdbusError(lost.code, lost.detail) from error
                raise
        raise PdbusError(ErrorCode.INTERNAL, "too many attempts")

    def ended(self, last: TokenChunk, *, src_freed: bool = False) -> Outcome:
        """Return the outcome of an answer that was followed to its end."""
        if last.finish is None:
            raise PdbusError(ErrorCode.INTERNAL, "that chunk ends nothing")
        return self._outcome(last, last.finish, Cleaned(src=src_freed, dst=last.freed))

    async def stop(self, reason: str) -> None:
        """Make sure that nothing runs any more for the newest attempt, on either side."""
        if self.plan is None and not self._unsure:
            return
        call = self._call
        cancel = Cancel(rid=call.rid, attempt=self._number, reason=reason)
        try:
            await self._ports.bus.publish(subjects.cancel(call.tenant, call.rid), cancel)
        except BusDown:
            get_logger().info("cancel not broadcast", rid=call.rid)
        if self.plan is not None:
            ports = self._ports
            await stop_both(ports.bus, ports.clock, call, self.plan.placement, reason)

    # One attempt

    async def _attempt(self, lost: AttemptLost | None, joined: Placement | None) -> Outcome:
        ports = self._ports
        rest = self._rest()
        if joined is None:
            self.plan = await self._place(rest, lost.suspects if lost else ())
        else:
            self.plan = Plan(placement=joined, source=None)
        placement = self.plan.placement
        self._number = placement.attempt
        self._assembler.begin(placement.attempt)
        sink = ports.ledger.sink
        nonce = new_nonce(ports.clock.entropy)
        reply = ReplyTo(gateway=sink.gateway, incarnation=sink.incarnation, nonce=nonce)
        follower = Follower(
            bus=ports.bus,
            clock=ports.clock,
            call=rest,
            placement=placement,
            assembler=self._assembler,
            reply=reply,
            emit=self._take,
            plain=self._emit,
            joined=joined is not None,
        )
        ports.mailroom.open(nonce, follower.deliver)
        try:
            if joined is None:
                await start_both(
                    bus=ports.bus,
                    clock=ports.clock,
                    call=rest,
                    plan=self.plan,
                    reply=reply,
                    offset=self._assembler.next,
                )
            self._started()
            last = await follower.run()
            return self.ended(last, src_freed=follower.prefill_freed)
        finally:
            ports.mailroom.shut(nonce)

    def _take(self, chunk: TokenChunk) -> None:
        # The end is shown once it stands in the ledger.
        if chunk.ids or chunk.text or chunk.details:
            self._emit(delta_of(chunk))
        if not chunk.offset and chunk.ids:
            later(partial(self._tell_streaming, chunk.attempt))

    def _tell_streaming(self, attempt: int) -> None:
        self._ports.chronicle.fact(EventKind.REQUEST_STREAMING, self._call.rid, attempt)

    def _ids(self) -> bytes:
        return b"".join(part.ids for part in self._shown)

    def _outcome(self, chunk: TokenChunk, finish: FinishReason, cleaned: Cleaned) -> Outcome:
        usage = Usage(
            prompt_tokens=self._call.prompt_tokens,
            completion_tokens=self._assembler.next,
            cached_tokens=0 if self._recovery.migrations else chunk.cached_tokens,
            migrations=self._recovery.migrations,
            reasoning_tokens=chunk.details.reasoning_tokens if chunk.details else 0,
        )
        return Outcome(
            finish=finish,
            usage=usage,
            attempt=chunk.attempt,
            placement=self.plan.placement if self.plan else None,
            revision=chunk.revision,
            cleaned=cleaned,
        )

    def _rest(self) -> Call:
        """Return what is still to be computed: the prompt grows by what was emitted."""
        emitted = self._assembler.next
        if not emitted:
            return self._call
        call = self._call
        sampling = msgspec.structs.replace(
            call.sampling,
            max_tokens=call.sampling.max_tokens - emitted,
            min_tokens=max(0, call.sampling.min_tokens - emitted),
        )
        return msgspec.structs.replace(
            call,
            prompt=PromptIds(call.input_ids + self._ids()),
            sampling=sampling,
        )

    async def _place(self, rest: Call, exclude: tuple[WorkerRef, ...]) -> Plan:
        ports = self._ports
        asked_ms = ports.chronicle.now_ms()
        self._unsure = True
        known, self.known = self.known, None
        try:
            plan = await find_place(
                bus=ports.bus,
                clock=ports.clock,
                call=rest,
                attempt=self._number,
                sink=ports.ledger.sink,
                exclude=exclude,
                known=known,
            )
        except PdbusError as refusal:
            self._unsure = refusal.code not in _NO_PLACE
            raise
        self._unsure = False
        later(partial(self._tell_place, plan, self._number, asked_ms, ports.chronicle.now_ms()))
        return plan

    def _tell_place(self, plan: Plan, number: int, asked_ms: float, placed_ms: float) -> None:
        tell, rid, facts = self._ports.chronicle, self._call.rid, _facts(plan)
        tell.stage(EventKind.STAGE_PLACE, rid, number, asked_ms, placed_ms, **facts)
        tell.fact(EventKind.REQUEST_ASSIGNED, rid, number, **facts)

    # After a loss

    async def _give_up(self, lost: AttemptLost) -> None:
        """End a lost attempt; return if there may be another.

        Raises:
            PdbusError: there may not.
        """
        count(names.GATEWAY_ATTEMPTS, outcome="lost", error_code=str(lost.code))
        await self.stop(f"attempt lost: {lost.code}")
        emitted = self._assembler.next
        now_s = self._ports.clock.monotonic()
        refusal = self._recovery.refusal(
            lost.code,
            emitted=emitted,
            text_is_whole=self._text_is_whole(),
            left_s=(self._call.deadline_ms - self._ports.clock.unix_ms()) / 1000,
        )
        if refusal is None and not self._ports.budget.take(now_s):
            refusal = "the budget of second attempts is spent"
        get_logger().warning(
            "attempt lost",
            rid=self._call.rid,
            attempt=self._number,
            code=lost.code,
            why=lost.detail,
            final=refusal or "",
        )
        self._ports.chronicle.fact(
            EventKind.ATTEMPT_FAILED,
            self._call.rid,
            self._number,
            code=str(lost.code),
            detail=lost.detail,
            emitted=emitted,
            final=refusal or "",
        )
        if refusal is not None:
            raise PdbusError(lost.code, lost.detail) from lost
        self._recovery.count(emitted=emitted)
        self._number += 1
        # A short pause, so that a fault that hits many does not become a burst.
        await self._ports.clock.sleep(0.05 + self._ports.clock.entropy.getrandbits(6) / 1000)

    def _text_is_whole(self) -> bool:
        said = self._ports.texts.text_of(self._call.model, self._ids())
        return said is not None and said == "".join(part.text for part in self._shown)


def _facts(plan: Plan) -> dict[str, str | float]:
    placement = plan.placement
    facts: dict[str, str | float] = {
        "mode": str(placement.mode),
        "decode": placement.decode.instance,
        "prefill": placement.prefill.instance if placement.prefill else "",
        "queued_s": plan.queued_s,
        "candidates": plan.candidates,
    }
    facts.update({f"score.{term.name}": round(term.value, 4) for term in plan.terms})
    return facts
