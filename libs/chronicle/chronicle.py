"""The teller of facts and stages.

Facts and stages go to the event stream (`pdbus trace` draws from it); stages also become spans in
the current trace and samples of a histogram. Nothing here decides anything, and nothing waits.
Events name their facts in short, spans by the registry; the table below is the translation.
"""

from __future__ import annotations

from libs.bus.api import Bus
from libs.clock.api import Clock
from libs.telemetry import Attribute, attributes, names, observe, record_span, recording, trace_id
from proto.errors import ErrorCode
from proto.events import Event, EventKind
from proto.ids import InstanceId, RequestId

__all__ = ["Chronicle", "Fact"]

Fact = str | int | float | bool

_SPANS: dict[EventKind, str] = {
    EventKind.STAGE_PLACE: names.SPAN_GATEWAY_PLACE,
    EventKind.STAGE_PREFILL_QUEUE: names.SPAN_PREFILL_QUEUE,
    EventKind.STAGE_PREFILL: names.SPAN_PREFILL_FORWARD,
    EventKind.STAGE_TRANSFER: names.SPAN_KV_TRANSFER,
    EventKind.STAGE_FIRST_TOKEN: names.SPAN_DECODE_FIRST_TOKEN,
    EventKind.STAGE_DECODE: names.SPAN_DECODE_LOOP,
}

_ATTRIBUTES: dict[str, str] = {
    "mode": attributes.MODE,
    "prefill": attributes.ROUTE_PREFILL,
    "decode": attributes.ROUTE_DECODE,
    "candidates": attributes.ROUTE_CANDIDATES,
    "queued_s": attributes.ROUTE_QUEUED_S,
    "cached_tokens": attributes.GEN_AI_CACHED_TOKENS,
    "lane": attributes.KV_LANE,
    "bytes": attributes.KV_BYTES,
    "moved_bytes": attributes.KV_BYTES,
    "expected_bytes": attributes.KV_EXPECTED_BYTES,
    "held_tokens": attributes.KV_HELD_TOKENS,
    "chunks": attributes.KV_CHUNKS,
    "retries": attributes.KV_RETRIES,
    "queue_s": attributes.KV_QUEUE_S,
    "wire_s": attributes.KV_WIRE_S,
    "copy_s": attributes.KV_COPY_S,
}
"""Facts that mean the same in every stage; a fact that is not here is not on the span."""

_TOKENS: dict[EventKind, str] = {
    EventKind.STAGE_PREFILL: attributes.GEN_AI_INPUT_TOKENS,
    EventKind.STAGE_TRANSFER: attributes.KV_TOKENS,
    EventKind.STAGE_DECODE: attributes.GEN_AI_OUTPUT_TOKENS,
}
"""What `tokens` counts."""


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
        if recording():
            record_span(_SPANS[kind], start_ms, end_ms, _attributes(kind, rid, attempt, data))
        observe(names.STAGE_SECONDS, (end_ms - start_ms) / 1000, stage=str(kind).split(".")[1])
        self._emit(kind, rid, attempt, start_ms, end_ms, data)

    def cut(
        self,
        kind: EventKind,
        rid: RequestId,
        attempt: int,
        start_ms: float,
        code: ErrorCode,
        **data: Fact,
    ) -> None:
        """Tell that a stage broke off just now: a failed span; its cause has an event of its own.

        It is no sample of the stage's histogram, which holds complete stages.
        """
        facts = _attributes(kind, rid, attempt, data)
        record_span(_SPANS[kind], start_ms, self.now_ms(), facts, error_type=str(code))

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


def _attributes(
    kind: EventKind, rid: RequestId, attempt: int, data: dict[str, Fact]
) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {attributes.REQUEST_ID: rid, attributes.ATTEMPT: attempt}
    for fact, value in data.items():
        if fact == "finish":
            # By the convention an answer may have several choices, so this is a list.
            found[attributes.GEN_AI_FINISH_REASONS] = (str(value),)
        elif fact == "tokens":
            found[_TOKENS[kind]] = value
        elif fact in _ATTRIBUTES:
            found[_ATTRIBUTES[fact]] = value
    return found
