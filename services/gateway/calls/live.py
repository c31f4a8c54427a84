"""A running request as one gateway holds it: who reads it, who drives it, how it ends here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from libs.bus.api import Versioned
from libs.telemetry import get_logger
from proto.errors import ErrorCode, PdbusError
from proto.events import EventKind
from proto.gateway import TokenChunk
from proto.ids import RequestId
from proto.ledger import Placement, RequestRecord
from services.gateway.api import Call, Delta
from services.gateway.attempts import Attempts
from services.gateway.calls.answer import AnswerLog
from services.gateway.calls.endings import Endings, Superseded
from services.gateway.calls.guest import Guest
from services.gateway.calls.reader import Reader
from services.gateway.calls.stored import keep_result
from services.gateway.later import later
from services.gateway.ledger import Taken
from services.gateway.ports import Ports

__all__ = ["ATTACH_S", "LiveCall"]

ATTACH_S = 10.0
"""How long a request with a key runs on without a reader."""


class LiveCall:
    """One request. Its driver is a task of its own; readers come and go.

    Args:
        joined: the record of a request that another gateway owns. It is followed from there, and
            taken over should that gateway be lost.
        on_over: called when nothing of the request runs here any more.
    """

    def __init__(
        self,
        ports: Ports,
        call: Call,
        *,
        joined: RequestRecord | None = None,
        on_over: Callable[[LiveCall], None],
    ) -> None:
        self.log = AnswerLog()
        self.call = call
        self._ports = ports
        self._joined = joined
        self._on_over = on_over
        self._owner = joined is None
        self._created_ms = joined.created_ms if joined else ports.clock.unix_ms()
        self._endings = Endings(ports, call.rid)
        self._attempts: Attempts | None = None
        self._guest: Guest | None = None
        self._opened = asyncio.Event()
        self._refused: BaseException | None = None
        self._readers: set[Reader] = set()
        self._held_until_s = 0.0
        self._finishing = False
        """Its answer is complete and its end is being written: too late to end it otherwise."""
        self._undoing = False
        """Its end is being written after its driver was cancelled."""
        self._driver: asyncio.Task[None] | None = None

    # What readers see

    @property
    def rid(self) -> RequestId:
        """The id of the request."""
        return self.call.rid

    @property
    def created_ms(self) -> int:
        """When the request was accepted, Unix ms."""
        return self._created_ms

    @property
    def placement(self) -> Placement:
        """Where the newest attempt runs; valid once the call was opened."""
        if self._attempts is not None and self._attempts.plan is not None:
            return self._attempts.plan.placement
        if self._guest is not None and self._guest.placement is not None:
            return self._guest.placement
        raise PdbusError(ErrorCode.INTERNAL, "the call has no place yet")

    def begin(self) -> None:
        """Start the driver."""
        self._driver = self._ports.tasks.spawn(self._run(), name="call")

    async def read(self) -> Reader:
        """Return a new reader once the request runs.

        Raises:
            PdbusError: refused or failed before any token.
            Taken: the id belongs to another request.
        """
        reader = Reader(self)
        self._readers.add(reader)
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            await reader.cancel("the client went away")
            raise
        if self._refused is not None:
            raise self._refused
        if self.log.failure is not None and not self.log.parts:
            raise self.log.failure
        return reader

    async def leave(self, reader: Reader, reason: str) -> None:
        """A reader has gone; the last one of a request without a key takes the request along."""
        self._readers.discard(reader)
        if self._readers or self.log.ended:
            return
        if self.call.key is None:
            self.cancel(reason)
        else:
            self._ports.tasks.spawn(self._linger(reason), name="linger")

    def hold(self, seconds: float) -> None:
        """Another gateway has readers of this request: run on for so long."""
        self._held_until_s = self._ports.clock.monotonic() + seconds

    def cancel(self, reason: str) -> bool:
        """End the request now; return whether it was running. Harmless after its end."""
        if self.log.ended or self._finishing:
            return False
        self._stop(PdbusError(ErrorCode.CANCELLED, reason))
        return True

    def give_up(self) -> None:
        """The gateway ends before the request has: its readers are told, and it is ended."""
        if not self.log.ended and not self._finishing:
            self._stop(PdbusError(ErrorCode.DRAINING, "the gateway shut down"))

    def _stop(self, error: PdbusError) -> None:
        self._undoing = self._owner
        if self._driver is not None:
            self._driver.cancel()
        self._close(error)
        if self._owner:
            self._ports.tasks.spawn(self._undo_last(error), name="undo call")

    # Driving

    async def _run(self) -> None:
        try:
            if self._joined is None:
                await self._own()
            else:
                await self._follow(self._joined)
        except Taken as taken:
            self._refused = taken
            self._close(None)
        except PdbusError as error:
            await self._fail(error)
        finally:
            if not self.log.ended:
                # A defect of ours, or the service stops: no reader must wait for ever.
                broken = PdbusError(ErrorCode.INTERNAL, "the call broke off")
                self._ports.tasks.spawn(self._fail(broken), name="broken call")
            if not self._undoing:
                self._on_over(self)

    async def _own(self) -> None:
        ports, call = self._ports, self.call
        self._attempts = self._new_attempts(0)
        if not call.prompt.known:
            # The ledger takes as long to answer.
            later(call.prompt.settle)
        record, revision = await ports.ledger.accept(call)
        if revision is not None:
            self._attempts.known = Versioned(record, revision)
        self._endings.accepted = record
        self._created_ms = record.created_ms
        ports.budget.accept(ports.clock.monotonic())
        later(self._tell_accepted)
        await self._complete(self._attempts, None)

    def _tell_accepted(self) -> None:
        call = self.call
        self._ports.chronicle.fact(
            EventKind.REQUEST_ACCEPTED,
            call.rid,
            prompt_tokens=call.prompt_tokens,
            max_tokens=call.sampling.max_tokens,
            model=call.model,
        )

    async def _follow(self, record: RequestRecord) -> None:
        """Follow a request that another gateway owns, until it ends or must be taken over."""
        self._endings.accepted = None
        self._guest = Guest(self._ports, self.call, self.log, self._opened.set)
        orphan = await self._guest.follow(record)
        if orphan is None:
            self._close(None)
            return
        self._owner = True
        placement = orphan.placement if orphan.attempt >= 0 else None
        first, source = max(0, orphan.attempt), self._guest.source
        self._attempts = self._new_attempts(first, source)
        await self._complete(self._attempts, placement, self._guest.last)

    async def _complete(
        self, attempts: Attempts, joined: Placement | None, last: TokenChunk | None = None
    ) -> None:
        outcome = attempts.ended(last) if last else await attempts.run(joined)
        if self.call.key is not None:
            await keep_result(
                self._ports.results,
                rid=self.rid,
                log=self.log,
                finish=outcome.finish,
                usage=outcome.usage,
                placement=self.placement,
                created_ms=self._created_ms,
            )
        self._finishing = True
        try:
            await self._endings.done(outcome)
        except Superseded as lost:
            self._finishing = False
            # While this process stood still, another gateway took the request over.
            self._owner = False
            await self._follow(lost.record)
            return
        self.log.add(Delta(b"", "", outcome.finish, outcome.usage))
        self._close(None)

    def _new_attempts(self, first: int, source: int = -1) -> Attempts:
        return Attempts(
            self._ports,
            self.call,
            emit=self.log.add,
            shown=self.log.parts,
            started=self._opened.set,
            first=first,
            source=source,
        )

    # Ending

    async def _linger(self, reason: str) -> None:
        clock = self._ports.clock
        until = clock.monotonic() + ATTACH_S
        while clock.monotonic() < max(until, self._held_until_s):
            await clock.sleep(0.5)
            if self._readers or self.log.ended:
                return
        self.cancel(reason)

    async def _fail(self, error: PdbusError) -> None:
        # The readers hear at once; the ledger and the workers follow.
        self._close(error)
        if self._owner:
            await self._undo(error)

    async def _undo_last(self, error: PdbusError) -> None:
        try:
            await self._undo(error)
        finally:
            self._on_over(self)

    async def _undo(self, error: PdbusError) -> None:
        """End the request by three ways: ledger, broadcast, and both workers by name."""
        attempts = self._attempts
        number = attempts.number if attempts else 0
        writing = self._endings.failed(error, number)
        if self.call.key is None and attempts is not None:
            await asyncio.gather(writing, attempts.stop(str(error.code)))
            return
        # With a key the owner may be another gateway by now, whose work must not be stopped.
        try:
            await writing
        except Superseded:
            get_logger().info("request has another owner", rid=self.rid)
            return
        if attempts is not None:
            await attempts.stop(str(error.code))

    def _close(self, failure: PdbusError | None) -> None:
        self.log.end(failure)
        # Requests that end in circles would stay until a collection, with all that was said.
        self._readers.clear()
        self._opened.set()
