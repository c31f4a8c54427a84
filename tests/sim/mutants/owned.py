"""Bugs in how a gateway owns and ends requests."""

from __future__ import annotations

from typing import Any

import msgspec

from libs.bus.api import BusDown, BusError, Conflict, StoreUnknown
from proto.errors import ErrorCode, PdbusError
from proto.ledger import Cleaned, RequestRecord, RequestState
from services.cleanup import CleanupService
from services.gateway.calls.endings import Endings
from services.gateway.calls.guest import Guest
from services.gateway.calls.live import LiveCall
from services.gateway.ledger import Ledger
from tests.sim.mutants.plant import Mutant, mutant, nothing

__all__ = ["OWNED"]


async def _end_without_cas(self: Any, rid: Any, ending: Any, _known: Any) -> Any:
    try:
        found = await self._store.get(rid)
        if found is None:
            return None
        record = _ended(self, found.value, ending)
        await self._store.update(rid, record, found.revision)
    except BusError:
        return None
    return record


async def _end_of_others(self: Any, rid: Any, ending: Any, _known: Any) -> Any:
    try:
        found = await self._store.get(rid)
        if found is None or found.value.ended:
            return found.value if found else None
        record = _ended(self, found.value, ending)
        await self._store.update(rid, record, found.revision)
    except BusError:
        return None
    return record


_try_end = Ledger._try_end


async def _end_as_known(self: Any, rid: Any, ending: Any, known: Any) -> Any:
    found = await _try_end(self, rid, ending, known)
    return _ended(self, known.value, ending) if found is None and known is not None else found


async def _end_as_clean(self: Any, rid: Any, ending: Any, _known: Any) -> Any:
    try:
        found = await self._store.get(rid)
        if found is None or found.value.ended or found.value.sink != self.sink:
            return found.value if found else None
        record = _ended(self, found.value, ending)
        record = msgspec.structs.replace(record, cleaned=Cleaned(src=True, dst=True))
        await self._store.update(rid, record, found.revision)
    except BusError:
        return None
    return record


def _ended(self: Any, record: RequestRecord, ending: Any) -> RequestRecord:
    return msgspec.structs.replace(
        record,
        state=ending.state,
        error=ending.error,
        detail=ending.detail,
        usage=ending.usage,
        ended_ms=self._clock.unix_ms(),
    )


_init = LiveCall.__init__


def _owner_of_all(self: Any, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    self._owner = True


async def _undo_quietly(self: Any, error: Any) -> None:
    if self._attempts is not None:
        await self._attempts.stop(str(error.code))


async def _accept_unseen(self: Any, call: Any) -> Any:
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
    )
    try:
        await self._store.create(call.rid, record)
    except (StoreUnknown, Conflict):
        return record, None
    except BusDown as error:
        raise PdbusError(ErrorCode.BUS_UNAVAILABLE, str(error)) from error
    return record, None


async def _take_over_quietly(self: Any, record: Any) -> Any:
    try:
        found = await self._store.get(record.rid)
        if found is None or found.value.ended:
            return None
        mine = msgspec.structs.replace(found.value, sink=self.sink)
        await self._store.update(record.rid, mine, found.revision)
    except BusError:
        return None
    return mine


_complete = LiveCall._complete


async def _never_complete(self: Any, attempts: Any, joined: Any, _last: Any = None) -> None:
    await _complete(self, attempts, joined)


OWNED: dict[str, Mutant] = {
    "terminal without compare-and-set": mutant("I2", 127, (Ledger, "_try_end", _end_without_cas)),
    "a known record counts as ended": mutant("I2", 30, (Ledger, "_try_end", _end_as_known)),
    "who ends a request calls it clean": mutant("I3", 0, (Ledger, "_try_end", _end_as_clean)),
    "the end is not written": mutant("I2", 0, (Endings, "_write", nothing)),
    "a failed call is not written": mutant(
        "I2", 0, (LiveCall, "_undo", _undo_quietly), (CleanupService, "_reconcile", nothing)
    ),
    "an unknown outcome counts as written": mutant("I2", 38, (Ledger, "accept", _accept_unseen)),
    "a guest writes the ledger": mutant(
        "I2", 73, (LiveCall, "__init__", _owner_of_all), (Ledger, "_try_end", _end_of_others)
    ),
    "a living gateway is taken over": mutant("I2", 0, (Guest, "_lost", lambda *_: True)),
    "a complete answer is taken over and goes on": mutant(
        "I1", 71, (LiveCall, "_complete", _never_complete)
    ),
    "taken over without a new epoch": mutant("I2", 5, (Ledger, "take_over", _take_over_quietly)),
}
