"""How an owned request ends: the ledger, the story, and the result."""

from __future__ import annotations

import msgspec

from libs.bus.api import Versioned
from libs.chronicle import Fact
from proto.errors import ErrorCode, PdbusError
from proto.events import EventKind
from proto.ids import RequestId
from proto.ledger import RequestRecord, RequestState
from services.gateway.attempts import Outcome
from services.gateway.ledger import Ending
from services.gateway.ports import Ports

__all__ = ["Endings", "Superseded"]

_END_S = 2.0
_END_LATER_S = 30.0


class Superseded(Exception):
    """Another gateway has taken the request over: how it ends is for that one to say."""

    def __init__(self, record: RequestRecord) -> None:
        super().__init__(record.rid)
        self.record = record


class Endings:
    """Writes the terminal state of one request.

    The story tells what stands in the ledger, and only once that is known: as long as it is not,
    somebody else may end the request in another way.
    """

    def __init__(self, ports: Ports, rid: RequestId) -> None:
        self.accepted: RequestRecord | None = None
        """The record as this gateway has made it, as long as no other has owned the request."""
        self._ports = ports
        self._rid = rid

    async def done(self, outcome: Outcome) -> None:
        """Write DONE; the reader sees the end only after that.

        Raises:
            PdbusError: somebody else ended the request first.
            Superseded: another gateway owns it.
        """
        facts: dict[str, Fact] = {
            "completion_tokens": outcome.usage.completion_tokens,
            "migrations": outcome.usage.migrations,
            "finish": str(outcome.finish),
        }
        ending = Ending(state=RequestState.DONE, usage=outcome.usage)
        record = await self._write(ending, outcome.attempt, facts, self._claimed(outcome))
        if record is None or record.state is RequestState.DONE:
            return
        if not record.ended:
            raise Superseded(record)
        raise PdbusError(record.error or ErrorCode.CANCELLED, "it was ended elsewhere")

    async def failed(self, error: PdbusError, attempt: int) -> None:
        """Write FAILED, or CANCELLED where that is what happened.

        Raises:
            Superseded: another gateway owns it.
        """
        cancelled = error.code is ErrorCode.CANCELLED
        state = RequestState.CANCELLED if cancelled else RequestState.FAILED
        ending = Ending(state=state, error=error.code, detail=error.detail)
        facts: dict[str, Fact] = {"code": str(error.code), "reason": error.detail}
        record = await self._write(ending, attempt, facts)
        if record is not None and not record.ended:
            raise Superseded(record)

    def _claimed(self, outcome: Outcome) -> Versioned[RequestRecord] | None:
        """Return the record as the claim has left it, with what its workers have said since."""
        if self.accepted is None or outcome.placement is None or not outcome.revision:
            return None
        claimed = msgspec.structs.replace(
            self.accepted,
            attempt=outcome.attempt,
            placement=outcome.placement,
            cleaned=outcome.cleaned,
        )
        return Versioned(claimed, outcome.revision)

    async def _write(
        self,
        ending: Ending,
        attempt: int,
        facts: dict[str, Fact],
        known: Versioned[RequestRecord] | None = None,
    ) -> RequestRecord | None:
        """Write an ending; if the ledger is away, go on trying without keeping the client."""
        ledger = self._ports.ledger
        record = await ledger.end(self._rid, ending, within_s=_END_S, known=known)
        if record is None:
            self._ports.tasks.spawn(self._write_later(ending, attempt, facts), name="end later")
        else:
            self._tell(record, ending, attempt, facts)
        return record

    async def _write_later(self, ending: Ending, attempt: int, facts: dict[str, Fact]) -> None:
        record = await self._ports.ledger.end(self._rid, ending, within_s=_END_LATER_S)
        if record is not None:
            self._tell(record, ending, attempt, facts)

    def _tell(
        self, record: RequestRecord, ending: Ending, attempt: int, facts: dict[str, Fact]
    ) -> None:
        if not record.ended:
            return
        if record.state is not ending.state:
            facts = {"code": str(record.error), "reason": record.detail}
        self._ports.chronicle.fact(_KINDS[record.state], self._rid, attempt, **facts)


_KINDS = {
    RequestState.DONE: EventKind.REQUEST_DONE,
    RequestState.FAILED: EventKind.REQUEST_FAILED,
    RequestState.CANCELLED: EventKind.REQUEST_CANCELLED,
}
