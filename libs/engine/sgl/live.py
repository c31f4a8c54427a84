"""One job inside the SGLang engine, from SGLang's items to the outputs of the port."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from libs.engine.sgl.jobs import finish_of, logprobs_of, pack_ids
from libs.engine.stream import OutputStream
from proto.backend import RoomClosed
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.kv import TransferReport
from proto.output import Details
from proto.workers import CompatCard

__all__ = ["LiveJob"]


class LiveJob:
    """A job that SGLang computes now.

    Args:
        job: what was asked.
        stream: where its outputs go.
        card: tells how many bytes its KV must have.
        row_bytes: metadata that travels with the KV.
        arrived: monotonic seconds.
    """

    def __init__(
        self, job: Job, stream: OutputStream, card: CompatCard, *, row_bytes: int, arrived: float
    ) -> None:
        self.job = job
        self.stream = stream
        self.cancelled = False
        self.check: asyncio.Task[str] | None = None
        """Of the job's guide, before SGLang has the job."""
        self.corrupt = ""
        """What is wrong with the bytes that were moved: nothing made of them is an answer."""
        self.ended = asyncio.Event()
        self._card = card
        self._row_bytes = row_bytes
        self._arrived = arrived
        self._closed: RoomClosed | None = None
        self._closed_after_s = 0.0

    @property
    def moved(self) -> bool:
        """Whether it is known how the job's transfer ended, if it has one."""
        return self._closed is not None or self.job.kind is JobKind.AGGREGATED

    def room_closed(self, message: RoomClosed, now: float) -> bool:
        """Keep how the job's transfer ended; return False if it moved what it should not have."""
        self._closed = message
        self._closed_after_s = now - self._arrived
        report = self._report()
        if message.code is None and report and report.moved_bytes != report.expected_bytes:
            self.corrupt = f"{report.moved_bytes} bytes moved, {report.expected_bytes} expected"
        return not self.corrupt

    def take(self, item: dict[str, Any]) -> bool:
        """Pass on one item of SGLang; return whether it was the last."""
        meta: dict[str, Any] = item["meta_info"]
        reason = meta["finish_reason"]
        ending = finish_of(reason) if reason is not None else None
        failed = isinstance(ending, tuple)
        # An aborted item repeats no tokens; what prefill sampled, decode has from its peer.
        speaks = self.job.kind is not JobKind.PREFILL and not failed and not self.corrupt
        if speaks and item["output_ids"]:
            self.stream.push(
                JobTokens(
                    job=self.job.job,
                    ids=pack_ids(item["output_ids"]),
                    text=item["text"] or "",
                    details=self._details(meta),
                )
            )
        if ending is None:
            return False
        if isinstance(ending, FinishReason) and not self.corrupt:
            self._finish(ending, meta)
        elif isinstance(ending, FinishReason):
            self.fail(ErrorCode.TRANSFER_CORRUPT, self.corrupt)
        else:
            self.fail(*ending)
        return True

    def fail(self, code: ErrorCode, detail: str) -> None:
        """End the job with the most telling reason that is known."""
        closed = self._closed
        if self.cancelled:
            code, detail = ErrorCode.CANCELLED, "aborted"
        elif self.corrupt:
            code, detail = ErrorCode.TRANSFER_CORRUPT, self.corrupt
        elif code is ErrorCode.INVALID_VALUE:
            pass  # the room broke because of it
        elif closed is not None and closed.code is not None:
            code, detail = closed.code, closed.detail
        elif code is ErrorCode.CANCELLED:
            code = ErrorCode.ENGINE_ERROR
        self.stream.push(
            JobFailed(job=self.job.job, code=code, detail=detail, transfer=self._report())
        )

    def _finish(self, finish: FinishReason, meta: dict[str, Any]) -> None:
        closed = self._closed
        decode = self.job.kind is JobKind.DECODE
        self.stream.push(
            JobFinished(
                job=self.job.job,
                finish=finish,
                prompt_tokens=int(meta["prompt_tokens"]),
                cached_tokens=int(meta["cached_tokens"]),
                completion_tokens=0
                if self.job.kind is JobKind.PREFILL
                else int(meta["completion_tokens"]),
                queue_s=closed.queue_s if closed else 0.0,
                forward_s=closed.forward_s if closed else 0.0,
                wait_kv_s=self._closed_after_s if decode else 0.0,
                transfer=self._report(),
            )
        )

    def _details(self, meta: dict[str, Any]) -> Details | None:
        return None if self.job.sampling.logprobs is None else Details(logprobs=logprobs_of(meta))

    def _report(self) -> TransferReport | None:
        """Return the report with the bytes that the model's shape demands, not the plane's word.

        What decode's scheduler says that it holds is not among them.
        """
        closed = self._closed
        if closed is None or closed.report is None:
            return None
        report = closed.report
        tokens = len(self.job.input_ids) // 4
        size = self._card.page_size
        held = closed.held_tokens
        rest = max(0, -(-tokens // size) * size - held)
        # The card tells the heads of one rank; each rank sends its own, and a row.
        expected = self._card.tp * (rest * self._card.kv_bytes_per_token + self._row_bytes)
        return msgspec.structs.replace(
            report, tokens=tokens, held_tokens=held, expected_bytes=expected
        )
