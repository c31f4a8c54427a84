"""The teller of facts and stages.

Facts and stages go to the event stream (`pdbus trace` draws from it); stages also become spans in
the current trace and samples of a histogram. Nothing here decides anything, and nothing waits.
"""

from __future__ import annotations

from libs.bus.api import Bus
from libs.clock.api import Clock
from libs.telemetry import names, observe, record_span, trace_id
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId

__all__ = ["Chronicle", "Fact"]

Fact = str | int | float | bool

_SPANS: dict[EventKind, str] = {
    EventKind.STAGE_PLACE: names.SPAN_ROUTER_PLAN,
    EventKind.STAGE_PREFILL_QUEUE: names.SPAN_PREFILL_QUEUE,
    EventKind.STAGE_PREFILL: names.SPAN_PREFILL_FORWARD,
    EventKind.STAGE_TRANSFER: names.SPAN_KV_TRANSFER,
    EventKind.STAGE_FIRST_TOKEN: names.SPAN_DECODE_FIRST_TOKEN,
    EventKind.STAGE_DECODE: names.SPAN_DECODE_LOOP,
}


class Chronicle:
    """Writes the story of requests for one process."""

    def __init__(self, *, bus: Bus, clock: Clock, instance: InstanceId) -> None:
        self._bus = bus
        self._clock = clock
        self._instance = instance

    def now_ms(self) -> float:
        """Return the Unix time in milliseconds that facts are stamped with."""
        return float(self._clock.unix_ms())

    def fact(self, kind: EventKind, rid: RequestId | None, attempt: int = 0, **data: Fact) -> None:
        """Tell that something happened now."""
        now = self.now_ms()
        self._emit(kind, rid, attempt, now, now, data)

    def stage(
        self,
        kind: EventKind,
        rid: RequestId,
        attempt: int,
        start_ms: float,
        end_ms: float,
        **data: Fact,
    ) -> None:
        """Tell that a stage of an attempt took from `start_ms` to `end_ms` (Unix ms)."""
        end_ms = max(start_ms, end_ms)
        record_span(_SPANS[kind], start_ms, end_ms, {f"pdbus.{k}": v for k, v in data.items()})
        observe(names.STAGE_SECONDS, (end_ms - start_ms) / 1000, stage=str(kind).split(".")[1])
        self._emit(kind, rid, attempt, start_ms, end_ms, data)

    def _emit(
        self,
        kind: EventKind,
        rid: RequestId | None,
        attempt: int,
        start_ms: float,
        at_ms: float,
        data: dict[str, Fact],
    ) -> None:
        self._bus.emit(
            Event(
                kind=kind,
                rid=rid,
                attempt=attempt,
                instance=self._instance,
                at_ms=at_ms,
                start_ms=start_ms,
                trace=trace_id(),
                data=data,
            )
        )
