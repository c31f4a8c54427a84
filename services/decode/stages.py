"""Tells the stages of a finished answer: transfer, first token, decode."""

from __future__ import annotations

from libs.chronicle import Chronicle, Fact
from libs.telemetry import count, get_logger, names, observe
from libs.worker import Attempt
from proto.decode import DecodeStart
from proto.errors import ErrorCode
from proto.events import EventKind
from proto.host import JobFinished
from proto.kv import Lane, TransferReport

__all__ = ["tell_broken_transfer", "tell_cut", "tell_stages"]


def tell_stages(
    chronicle: Chronicle,
    attempt: Attempt,
    start: DecodeStart,
    done: JobFinished,
    first_ms: float | None,
) -> None:
    """Write the stages of an attempt that has just finished."""
    now_ms = chronicle.now_ms()
    first_ms = now_ms if first_ms is None else first_ms
    usable_ms = min(first_ms, attempt.started_ms + done.wait_kv_s * 1000)
    if start.source is None:
        _tell_prefill(chronicle, attempt, done)
        usable_ms = min(first_ms, attempt.started_ms + (done.queue_s + done.forward_s) * 1000)
    else:
        _tell_transfer(chronicle, attempt, done, usable_ms)
    chronicle.stage(EventKind.STAGE_FIRST_TOKEN, attempt.rid, attempt.number, usable_ms, first_ms)
    chronicle.stage(
        EventKind.STAGE_DECODE,
        attempt.rid,
        attempt.number,
        first_ms,
        now_ms,
        tokens=attempt.produced - attempt.offset,
        finish=str(done.finish),
    )


def tell_cut(
    chronicle: Chronicle, attempt: Attempt, code: ErrorCode, first_ms: float | None
) -> None:
    """Tell how far an attempt came that broke off just now."""
    rid, number = attempt.rid, attempt.number
    if first_ms is None:
        chronicle.cut(EventKind.STAGE_FIRST_TOKEN, rid, number, attempt.started_ms, code)
    else:
        tokens = attempt.produced - attempt.offset
        chronicle.cut(EventKind.STAGE_DECODE, rid, number, first_ms, code, tokens=tokens)


def _tell_prefill(chronicle: Chronicle, attempt: Attempt, done: JobFinished) -> None:
    forward_ms = attempt.started_ms + done.queue_s * 1000
    chronicle.stage(
        EventKind.STAGE_PREFILL_QUEUE,
        attempt.rid,
        attempt.number,
        attempt.started_ms,
        forward_ms,
    )
    chronicle.stage(
        EventKind.STAGE_PREFILL,
        attempt.rid,
        attempt.number,
        forward_ms,
        forward_ms + done.forward_s * 1000,
        tokens=done.prompt_tokens,
        cached_tokens=done.cached_tokens,
        lane=str(Lane.LOCAL),
    )


def tell_broken_transfer(
    chronicle: Chronicle, attempt: Attempt, code: ErrorCode, report: TransferReport
) -> None:
    """Tell of a transfer that ended early, or moved what it should not have."""
    lane = str(report.lane)
    count(names.KV_TRANSFER_FAILURES, lane=lane, reason=str(code))
    count(names.KV_TRANSFER_BYTES, report.moved_bytes, role="decode", lane=lane)
    if code is ErrorCode.TRANSFER_CORRUPT:
        count(names.KV_BYTE_MISMATCHES)
    began_ms = chronicle.now_ms() - report.total_s * 1000
    facts = _transfer_facts(attempt, report)
    chronicle.cut(EventKind.STAGE_TRANSFER, attempt.rid, attempt.number, began_ms, code, **facts)
    get_logger().warning("kv transfer failed", rid=attempt.rid, code=str(code), **facts)


def _tell_transfer(
    chronicle: Chronicle, attempt: Attempt, done: JobFinished, usable_ms: float
) -> None:
    report = done.transfer
    if report is None:
        return
    moving_s = max(0.0, report.total_s - report.queue_s)
    lane = str(report.lane)
    count(names.KV_TRANSFERS, role="decode", lane=lane)
    count(names.KV_TRANSFER_BYTES, report.moved_bytes, role="decode", lane=lane)
    count(names.KV_EXPECTED_BYTES, report.expected_bytes, role="decode", lane=lane)
    count(names.KV_TRANSFER_CHUNKS, report.chunks, lane=lane)
    if attempt.number:
        count(names.KV_TRANSFER_RETRIES)
    observe(names.KV_TRANSFER_SECONDS, moving_s, lane=lane)
    observe(names.KV_TRANSFER_QUEUE_SECONDS, report.queue_s, lane=lane)
    observe(names.KV_TRANSFER_WIRE_SECONDS, report.wire_s, lane=lane)
    observe(names.KV_TRANSFER_COPY_SECONDS, report.copy_s, role="decode", lane=lane)
    chronicle.stage(
        EventKind.STAGE_TRANSFER,
        attempt.rid,
        attempt.number,
        usable_ms - moving_s * 1000,
        usable_ms,
        **_transfer_facts(attempt, report),
    )


def _transfer_facts(attempt: Attempt, report: TransferReport) -> dict[str, Fact]:
    return {
        "lane": str(report.lane),
        "expected_bytes": report.expected_bytes,
        "moved_bytes": report.moved_bytes,
        "tokens": report.tokens,
        "held_tokens": report.held_tokens,
        "chunks": report.chunks,
        "retries": attempt.number,
        "queue_s": round(report.queue_s, 6),
        "wire_s": round(report.wire_s, 6),
        "copy_s": round(report.copy_s, 6),
    }
