"""Grants claims: writes STREAMING for the one decode that the ledger names."""

from __future__ import annotations

import msgspec

from libs.bus.api import BusDown, Conflict, RequestTimeout, Store, StoreUnknown, Versioned
from libs.telemetry import count, names
from proto.errors import ErrorCode, PdbusError
from proto.ids import RequestId
from proto.ledger import RequestRecord, RequestState
from proto.router import Claim, Claimed

__all__ = ["Claims"]

_TRIES = 5
_MOST_FRESH = 4096


class Claims:
    """The claim verb."""

    def __init__(self, store: Store[RequestRecord]) -> None:
        self._store = store
        self._fresh: dict[RequestId, Versioned[RequestRecord]] = {}
        """Records that this router has just assigned, the oldest first."""

    def expect(self, record: RequestRecord, revision: int) -> None:
        """Keep a record that was just assigned: its claim then need not read it.

        A compare-and-set shows whether it still stands.
        """
        self._fresh.pop(record.rid, None)
        self._fresh[record.rid] = Versioned(record, revision)
        if len(self._fresh) > _MOST_FRESH:
            del self._fresh[next(iter(self._fresh))]

    async def grant(self, ask: Claim) -> Claimed:
        """Let a decode stream its attempt; the same claim again is granted again.

        Raises:
            PdbusError: cancelled, stale_attempt, unknown_request, bus_unavailable.
        """
        try:
            granted = await self._write(ask)
        except PdbusError as refusal:
            count(names.ROUTER_CLAIMS, outcome="refused", error_code=str(refusal.code))
            raise
        except (BusDown, RequestTimeout, StoreUnknown) as error:
            raise PdbusError(ErrorCode.BUS_UNAVAILABLE, str(error)) from error
        count(names.ROUTER_CLAIMS, outcome="granted", error_code="")
        return granted

    async def _write(self, ask: Claim) -> Claimed:
        found = self._fresh.pop(ask.rid, None)
        if found is not None and found.value.attempt != ask.attempt:
            found = None
        for _ in range(_TRIES):
            found = found or await self._store.get(ask.rid)
            if found is None:
                raise PdbusError(ErrorCode.UNKNOWN_REQUEST, "no record")
            record = found.value
            _check(record, ask)
            if record.state is RequestState.STREAMING:
                return _granted(record, found.revision, ask)
            streaming = msgspec.structs.replace(record, state=RequestState.STREAMING)
            revision, found = found.revision, None
            try:
                revision = await self._store.update(ask.rid, streaming, revision)
            except Conflict:
                continue
            return _granted(streaming, revision, ask)
        raise PdbusError(ErrorCode.BUS_UNAVAILABLE, "the record changes too fast")


def _granted(record: RequestRecord, revision: int, ask: Claim) -> Claimed:
    # A gateway that has lost the request must not write over the record of its new owner.
    mine = ask.gateway == record.sink.incarnation
    return Claimed(attempt=ask.attempt, revision=revision if mine else 0)


def _check(record: RequestRecord, ask: Claim) -> None:
    if record.ended:
        raise PdbusError(ErrorCode.CANCELLED, f"the request is {record.state}")
    if record.attempt < ask.attempt:
        raise PdbusError(ErrorCode.BUS_UNAVAILABLE, "this reader lags behind the writer")
    placement = record.placement
    if record.attempt != ask.attempt or placement is None:
        raise PdbusError(ErrorCode.STALE_ATTEMPT, f"attempt {record.attempt} is the newest")
    if placement.decode.incarnation != ask.worker.incarnation:
        raise PdbusError(ErrorCode.STALE_ATTEMPT, "another decode has this attempt")
