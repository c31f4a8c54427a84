"""How an owned request ends: the ledger, the story, and the result."""

from __future__ import annotations

from proto.errors import ErrorCode, PdbusError
from proto.events import EventKind
from proto.ids import RequestId
from proto.ledger import RequestRecord, RequestState
from services.gateway.attempts import Outcome
from services.gateway.ledger import Ending
from services.gateway.ports import Ports

__all__ = ["Endings"]

_END_S = 2.0
_END_LATER_S = 30.0


class Endings:
    """Writes the terminal state of one request."""

    def __init__(self, ports: Ports, rid: RequestId) -> None:
        self._ports = ports
        self._rid = rid

    async def done(self, outcome: Outcome) -> None:
        """Write DONE; the reader sees the end only after that.

        Raises:
            PdbusError: somebody else ended the request first.
        """
        record = await self._write(Ending(state=RequestState.DONE, usage=outcome.usage))
        if record is not None and record.state is not RequestState.DONE:
            raise PdbusError(record.error or ErrorCode.CANCELLED, "it was ended elsewhere")
        self._ports.chronicle.fact(
            EventKind.REQUEST_DONE,
            self._rid,
            outcome.attempt,
            completion_tokens=outcome.usage.completion_tokens,
            migrations=outcome.usage.migrations,
            finish=str(outcome.finish),
        )

    async def failed(self, error: PdbusError, attempt: int) -> None:
        """Write FAILED, or CANCELLED where that is what happened."""
        cancelled = error.code is ErrorCode.CANCELLED
        state = RequestState.CANCELLED if cancelled else RequestState.FAILED
        ending = Ending(state=state, error=error.code, detail=error.detail)
        record = await self._write(ending)
        stands = record.state if record is not None and record.ended else state
        # The story tells how the request ended, not how this gateway would have ended it.
        self._ports.chronicle.fact(
            _KINDS[stands], self._rid, attempt, code=str(error.code), reason=error.detail
        )

    async def _write(self, ending: Ending) -> RequestRecord | None:
        """Write an ending; if the ledger is away, go on trying without keeping the client."""
        record = await self._ports.ledger.end(self._rid, ending, within_s=_END_S)
        if record is None:
            later = self._ports.ledger.end(self._rid, ending, within_s=_END_LATER_S)
            self._ports.tasks.spawn(later, name="end call later")
        return record


_KINDS = {
    RequestState.DONE: EventKind.REQUEST_DONE,
    RequestState.FAILED: EventKind.REQUEST_FAILED,
    RequestState.CANCELLED: EventKind.REQUEST_CANCELLED,
}
