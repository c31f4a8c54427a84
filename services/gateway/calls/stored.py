"""Finished answers: kept for ten minutes for whoever sends the same key again."""

from __future__ import annotations

from libs.bus.api import BusError, RequestTimeout, Store
from libs.telemetry import get_logger
from proto.base import encode
from proto.errors import ErrorCode, PdbusError
from proto.gateway import FinishReason
from proto.ids import RequestId
from proto.ledger import Placement, RequestRecord, Usage
from proto.results import MOST_RESULT_BYTES, ResultPart, StoredResult
from services.gateway.api import Delta
from services.gateway.calls.answer import AnswerLog
from services.gateway.calls.reader import Reader

__all__ = ["StoredCall", "fetch_result", "keep_result"]


class StoredCall:
    """A finished request, read again."""

    def __init__(self, result: StoredResult) -> None:
        self.log = AnswerLog()
        self._result = result
        for part in result.parts:
            self.log.add(Delta(part.ids, part.text, details=part.details))
        self.log.add(Delta(b"", "", result.finish, result.usage))
        self.log.end(None)

    @property
    def rid(self) -> RequestId:
        """The id of the request."""
        return self._result.rid

    @property
    def placement(self) -> Placement:
        """Where its last attempt ran."""
        return self._result.placement

    @property
    def created_ms(self) -> int:
        """When it was accepted."""
        return self._result.created_ms

    async def leave(self, reader: Reader, reason: str) -> None:
        """Nothing runs, so nothing ends."""


async def keep_result(  # noqa: PLR0913 - the parts of a result
    results: Store[StoredResult],
    *,
    rid: RequestId,
    log: AnswerLog,
    finish: FinishReason,
    usage: Usage,
    placement: Placement,
    created_ms: int,
) -> None:
    """Keep an answer; if that fails, a resubmission hears that it is kept no more."""
    result = StoredResult(
        rid=rid,
        parts=tuple(
            ResultPart(ids=d.ids, text=d.text, details=d.details)
            for d in log.parts
            if d.ids or d.text or d.details
        ),
        finish=finish,
        usage=usage,
        placement=placement,
        created_ms=created_ms,
    )
    if len(encode(result)) > MOST_RESULT_BYTES:
        get_logger().info("result not kept: too long", rid=rid)
        return
    try:
        await results.create(rid, result)
    except BusError as error:
        get_logger().warning("result not kept", rid=rid, error=str(error))


async def fetch_result(results: Store[StoredResult], record: RequestRecord) -> StoredResult:
    """Return the answer of a finished request.

    Raises:
        PdbusError: result_expired, bus_unavailable.
    """
    try:
        found = await results.get(record.rid)
    except (BusError, RequestTimeout) as error:
        raise PdbusError(ErrorCode.BUS_UNAVAILABLE, str(error), retry_after_s=1) from error
    if found is None:
        raise PdbusError(ErrorCode.RESULT_EXPIRED, "no result is stored")
    return found.value
