"""What is told of a transfer: the same facts in its event, its span and the metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.bus.api import Bus
from libs.chronicle import Chronicle
from libs.clock import Clock
from libs.telemetry import attributes
from libs.worker import Attempt
from proto.decode import DecodeStart
from proto.errors import ErrorCode
from proto.events import Event, EventKind
from proto.gateway import FinishReason
from proto.host import JobFinished
from proto.ids import Incarnation, InstanceId, JobId, Nonce, RequestId, Room
from proto.kv import Lane, PeerAddress, TransferReport
from proto.ledger import Mode
from proto.prefill import ReplyTo
from proto.sampling import SamplingParams
from services.decode.stages import tell_broken_transfer, tell_stages

RID = RequestId("01hf7yb2ny8wsyvtsy3bemvcp2")
REPLY = ReplyTo(gateway=InstanceId("g"), incarnation=Incarnation("1" * 16), nonce=Nonce("2" * 32))
REPORT = TransferReport(
    room=Room(7),
    lane=Lane.RC,
    expected_bytes=4096,
    moved_bytes=4096,
    tokens=16,
    held_tokens=32,
    chunks=3,
    queue_s=0.25,
    wire_s=0.5,
    copy_s=0.125,
    total_s=1.0,
)
FACTS = {
    "lane": "rc",
    "expected_bytes": 4096,
    "moved_bytes": 4096,
    "tokens": 16,
    "held_tokens": 32,
    "chunks": 3,
    "retries": 2,
    "queue_s": 0.25,
    "wire_s": 0.5,
    "copy_s": 0.125,
}
SPAN = {
    attributes.KV_LANE: "rc",
    attributes.KV_EXPECTED_BYTES: 4096,
    attributes.KV_BYTES: 4096,
    attributes.KV_TOKENS: 16,
    attributes.KV_HELD_TOKENS: 32,
    attributes.KV_CHUNKS: 3,
    attributes.KV_RETRIES: 2,
    attributes.KV_QUEUE_S: 0.25,
    attributes.KV_WIRE_S: 0.5,
    attributes.KV_COPY_S: 0.125,
}


@dataclass
class Told:
    events: list[Event] = field(default_factory=list[Event])

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def unix_ms(self) -> int:
        return 5000


@pytest.fixture
def told() -> Told:
    """What went to the event stream."""
    return Told()


@pytest.fixture
def chronicle(told: Told) -> Chronicle:
    """A teller whose time stands still."""
    return Chronicle(
        bus=cast("Bus", told), clock=cast("Clock", told), instance=InstanceId("decode-1")
    )


def attempt() -> Attempt:
    """The third attempt of a request."""
    return Attempt(RID, 2, REPLY, started_ms=1000.0, started_s=1.0)


def test_a_transfer_is_told_in_full(
    told: Told,
    chronicle: Chronicle,
    spans: InMemorySpanExporter,
    metric: Callable[..., float],
) -> None:
    """Bytes expected and moved, lane, times, chunks and retries are in all three places."""
    start = DecodeStart(
        rid=RID,
        attempt=2,
        mode=Mode.DISAGGREGATED,
        room=Room(7),
        input_ids=b"",
        sampling=SamplingParams(max_tokens=1),
        reply=REPLY,
        compat="c",
        not_after_ms=0,
        deadline_ms=0,
        source=PeerAddress(incarnation="1", host="h"),
    )
    done = JobFinished(
        job=JobId("j"), finish=FinishReason.STOP, prompt_tokens=16, wait_kv_s=1.0, transfer=REPORT
    )
    retries = metric("pdbus.kv.transfer_retries")

    def sums() -> list[float]:
        of_decode = [
            metric(f"pdbus.kv.{name}", role="decode", lane="rc")
            for name in ("transfers", "transfer_bytes", "expected_bytes", "transfer_copy")
        ]
        of_lane = [
            metric(f"pdbus.kv.{name}", lane="rc")
            for name in ("transfer_chunks", "transfer", "transfer_queue", "transfer_wire")
        ]
        return of_decode + of_lane

    before = sums()
    tell_stages(chronicle, attempt(), start, done, 2000.0)
    (event,) = [e for e in told.events if e.kind is EventKind.STAGE_TRANSFER]
    assert event.data == FACTS
    assert event.at_ms - event.start_ms == 750
    (span,) = [one for one in spans.get_finished_spans() if one.name == "kv.transfer"]
    assert SPAN.items() <= dict(span.attributes or {}).items()
    added = [after - first for first, after in zip(before, sums(), strict=True)]
    assert added == [1, 4096, 4096, 1, 3, 1, 1, 1]
    assert metric("pdbus.kv.transfer_retries") == retries + 1


@pytest.mark.parametrize("code", [ErrorCode.TRANSFER_CORRUPT, ErrorCode.PREFILL_LOST])
def test_a_broken_transfer_is_a_failed_span_and_a_count(
    chronicle: Chronicle,
    spans: InMemorySpanExporter,
    metric: Callable[..., float],
    code: ErrorCode,
) -> None:
    """What was moved before the end is told with why it ended; wrong bytes have a count."""
    before = metric("pdbus.kv.byte_mismatches")
    failed = metric("pdbus.kv.transfer_failures", lane="rc", reason=str(code))
    tell_broken_transfer(chronicle, attempt(), code, REPORT)
    (span,) = [one for one in spans.get_finished_spans() if one.name == "kv.transfer"]
    assert SPAN.items() <= dict(span.attributes or {}).items()
    assert (span.attributes or {})["error.type"] == str(code)
    assert metric("pdbus.kv.transfer_failures", lane="rc", reason=str(code)) == failed + 1
    wrong = code is ErrorCode.TRANSFER_CORRUPT
    assert metric("pdbus.kv.byte_mismatches") == before + wrong
