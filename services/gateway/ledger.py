"""The gateway's writes to the ledger: accept once, end once."""

from __future__ import annotations

import asyncio

import msgspec

from libs.bus.api import BusDown, Conflict, RequestTimeout, Store, StoreUnknown, Versioned
from libs.clock.api import Clock
from libs.telemetry import count, names, traceparent
from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId
from proto.ledger import RequestRecord, RequestState, Sink, Usage
from services.gateway.api import Call

__all__ = ["Ending", "Ledger", "Taken"]

_ACCEPT_TRIES = 3
_PAUSE_S = 0.05


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended."""

    state: RequestState
    error: ErrorCode | None = None
    detail: str = ""
    usage: Usage | None = None


class Taken(Exception):
    """The id of a call stands for a request that exists already."""

    def __init__(self, record: RequestRecord) -> None:
        super().__init__(record.rid)
        self.record = record


class Ledger:
    """Records of the requests that this gateway owns."""

    def __init__(self, *, store: Store[RequestRecord], clock: Clock, sink: Sink) -> None:
        self._store = store
        self._clock = clock
        self.sink = sink

    async def accept(self, call: Call) -> tuple[RequestRecord, int | None]:
        """Create the record of a call; return it with its revision, where that is known.

        Raises:
            Taken: there is another record of that id.
            PdbusError: bus_unavailable.
        """
        record = RequestRecord(
            rid=call.rid,
            tenant=call.tenant,
            model=call.model,
            state=RequestState.ACCEPTED,
            attempt=-1,
            sink=self.sink,
            digest=call.digest,
            deadline_ms=call.deadline_ms,
            created_ms=self._clock.unix_ms(),
            traceparent=traceparent()[0],
        )
        for _ in range(_ACCEPT_TRIES):
            revision = None
            try:
                revision = await self._store.create(call.rid, record)
            except Conflict as error:
                found = await self.find(call.rid)
                if found is None:
                    continue
                if found != record:
                    raise Taken(found) from error
            except StoreUnknown:
                # If it was written all the same, the next try meets our own record.
                continue
            except BusDown as error:
                raise PdbusError(ErrorCode.BUS_UNAVAILABLE, str(error), retry_after_s=1) from error
            return record, revision
        raise PdbusError(ErrorCode.BUS_UNAVAILABLE, "the ledger does not answer", retry_after_s=1)

    async def find(self, rid: RequestId) -> RequestRecord | None:
        """Return the record of a request, if there is one.

        Raises:
            PdbusError: bus_unavailable.
        """
        try:
            found = await self._store.get(rid)
        except (BusDown, RequestTimeout) as error:
            raise PdbusError(ErrorCode.BUS_UNAVAILABLE, str(error), retry_after_s=1) from error
        return found.value if found else None

    async def take_over(self, record: RequestRecord) -> RequestRecord | None:
        """Become the owner of a request whose gateway is gone; None if it changed meanwhile."""
        try:
            found = await self._store.get(record.rid)
            if found is None or found.value.ended or found.value.sink != record.sink:
                return None
            sink = msgspec.structs.replace(self.sink, epoch=record.sink.epoch + 1)
            mine = msgspec.structs.replace(found.value, sink=sink)
            await self._store.update(record.rid, mine, found.revision)
        except (Conflict, StoreUnknown, BusDown, RequestTimeout):
            return None
        return mine

    async def end(
        self,
        rid: RequestId,
        ending: Ending,
        *,
        within_s: float,
        known: Versioned[RequestRecord] | None = None,
    ) -> RequestRecord | None:
        """Write a terminal state; return the record as it stands, or None if it is not known.

        If somebody else ended the request first, that ending stands and is returned.

        Args:
            rid: which request.
            ending: how it ended.
            within_s: how long to go on trying.
            known: the record as it probably stands; where it has changed, it is read.
        """
        if known is not None:
            # What nearly every request takes is bounded by the store: to bound it again costs more.
            began_s = self._clock.monotonic()
            record = await self._try_end(rid, ending, known)
            if record is not None:
                return record
            within_s -= self._clock.monotonic() - began_s
        try:
            async with asyncio.timeout(max(0.0, within_s)):
                while True:
                    record = await self._try_end(rid, ending, None)
                    if record is not None:
                        return record
                    await self._clock.sleep(_PAUSE_S)
        except TimeoutError:
            return None

    async def _try_end(
        self, rid: RequestId, ending: Ending, known: Versioned[RequestRecord] | None
    ) -> RequestRecord | None:
        try:
            found = known or await self._store.get(rid)
            if found is None:
                return None
            record = found.value
            if record.ended or record.sink.incarnation != self.sink.incarnation:
                return record
            ended = msgspec.structs.replace(
                record,
                state=ending.state,
                error=ending.error,
                detail=ending.detail,
                usage=ending.usage,
                ended_ms=self._clock.unix_ms(),
            )
            await self._store.update(rid, ended, found.revision)
        except Conflict:
            count(names.GATEWAY_LEDGER_CONFLICTS, op="end")
            return None
        except (StoreUnknown, BusDown, RequestTimeout):
            return None
        return ended
