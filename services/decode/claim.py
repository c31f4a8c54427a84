"""The claim: before a decode emits, the ledger must name it as the one that may."""

from __future__ import annotations

from libs.bus.api import Bus, BusDown, NoResponders, RequestTimeout
from libs.clock.api import Clock
from libs.telemetry import count, names
from proto import subjects
from proto.errors import ErrorCode, PdbusError
from proto.ids import Incarnation, RequestId
from proto.router import Claim, Claimed
from proto.workers import WorkerRef

__all__ = ["claim"]

_PATIENCE_S = 1.0
_TRY_S = 0.5
_PAUSE_S = 0.05
_FINAL = frozenset({ErrorCode.STALE_ATTEMPT, ErrorCode.CANCELLED, ErrorCode.DEADLINE})


async def claim(
    *,
    bus: Bus,
    clock: Clock,
    rid: RequestId,
    attempt: int,
    worker: WorkerRef,
    gateway: Incarnation,
) -> int | ErrorCode:
    """Ask for the attempt; return the record's revision if it may be streamed, else the refusal.

    If no router or ledger answers within a second, the attempt is streamed unclaimed, and the
    revision is 0: the gateway's own fence drops the output of a stale attempt, so only work can be
    wasted.
    """
    ask = Claim(rid=rid, attempt=attempt, worker=worker, gateway=gateway)
    until = clock.monotonic() + _PATIENCE_S
    while clock.monotonic() < until:
        try:
            claimed = await bus.request(subjects.ROUTER_CLAIM, ask, Claimed, timeout_s=_TRY_S)
        except PdbusError as refusal:
            if refusal.code in _FINAL:
                count(names.DECODE_CLAIMS, outcome="refused")
                return refusal.code
        except (NoResponders, RequestTimeout, BusDown):
            pass
        else:
            count(names.DECODE_CLAIMS, outcome="granted")
            return claimed.revision
        await clock.sleep(_PAUSE_S)
    count(names.DECODE_CLAIMS, outcome="unclaimed")
    return 0
