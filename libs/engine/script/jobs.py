"""The jobs of a scripted engine, the memory they hold, and how each of them ends."""

from __future__ import annotations

from libs.engine.script.live import LiveJob
from libs.engine.script.memory import KvMemory, PageAllocator
from libs.transfer.api import RoomState
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import JobFailed, JobFinished, JobKind, JobTokens
from proto.ids import JobId
from proto.kv import TransferReport
from proto.output import Details

__all__ = ["Jobs"]

_FINAL = (RoomState.DONE, RoomState.FAILED)


class Jobs:
    """Every live job, in order of arrival, with its pages and its row (one row is one slot)."""

    def __init__(self, memory: KvMemory, pages: PageAllocator, rows: PageAllocator) -> None:
        self.memory = memory
        self.pages = pages
        self.rows = rows
        self.queued: dict[JobId, LiveJob] = {}
        self.admitted: dict[JobId, LiveJob] = {}
        self.changes = 0
        """Counts how often a job was admitted, ended, or came to another stage."""

    def get(self, job: JobId) -> LiveJob | None:
        """Return a live job."""
        return self.queued.get(job) or self.admitted.get(job)

    @property
    def used_tokens(self) -> int:
        """Tokens of KV memory that jobs hold."""
        return self.pages.used * self.memory.page_size

    def admit(self, live: LiveJob) -> bool:
        """Give a queued job its slot and all pages it may need; return whether there were any."""
        tokens = live.length
        if live.job.kind is not JobKind.PREFILL:
            tokens += live.job.sampling.max_tokens
        row = self.rows.take(1)
        if row is None:
            return False
        pages = self.pages.take(-(-tokens // self.memory.page_size))
        if pages is None:
            self.rows.give(row)
            return False
        live.row, live.pages = row[0], pages
        live.places = self.memory.places(pages)
        del self.queued[live.job.job]
        self.admitted[live.job.job] = live
        self.changes += 1
        return True

    def put(self, live: LiveJob, token: int, now: float) -> None:
        """Put out one token of a plain answer, which only its length can end here."""
        live.produced = produced = live.produced + 1
        ids, text = token.to_bytes(4, "little"), live.text.step(token)
        stream = live.stream
        (stream.direct or stream.push)(JobTokens(job=live.job.job, ids=ids, text=text))
        if produced >= live.most:
            self.finish(live, FinishReason.LENGTH, now)

    def say(
        self, live: LiveJob, token: int, *, ends: bool, details: Details | None, now: float
    ) -> None:
        """Put out one token of an answer; finish the job if it is the last one."""
        job = live.job
        sampling = job.sampling
        live.last_token = token
        live.produced = produced = live.produced + 1
        stopped = ends or (token in sampling.stop_token_ids and produced > sampling.min_tokens)
        if stopped:
            done, text = True, live.stops.rest()
        else:
            text, stopped = live.stops.feed(live.text.step(token))
            done = stopped or produced >= sampling.max_tokens
            if done and not stopped:
                text += live.stops.rest()
        ids = token.to_bytes(4, "little")
        live.stream.push(JobTokens(job=job.job, ids=ids, text=text, details=details))
        if done:
            self.finish(live, FinishReason.STOP if stopped else FinishReason.LENGTH, now)

    def finish(self, live: LiveJob, reason: FinishReason, now: float) -> None:
        """End a job well."""
        report = self._release(live, "finished")
        first = live.first_step if live.first_step is not None else now
        computed = live.prompt_done if live.prompt_done is not None else first
        usable = live.kv_usable if live.kv_usable is not None else live.arrived
        live.stream.push(
            JobFinished(
                job=live.job.job,
                finish=reason,
                prompt_tokens=live.length,
                completion_tokens=live.produced,
                queue_s=first - live.arrived,
                forward_s=computed - first,
                wait_kv_s=usable - live.arrived,
                transfer=report,
            )
        )

    def fail(self, live: LiveJob, code: ErrorCode, detail: str) -> None:
        """End a job badly; all it holds is free when this returns."""
        report = self._release(live, detail)
        live.stream.push(JobFailed(job=live.job.job, code=code, detail=detail, transfer=report))

    def _release(self, live: LiveJob, detail: str) -> TransferReport | None:
        report: TransferReport | None = None
        for handle in (live.offer, live.fetch):
            if handle is None:
                continue
            if handle.state not in _FINAL:
                handle.abort(detail)
            report = handle.report
        live.over = True
        job = live.job.job
        self.queued.pop(job, None)
        if self.admitted.pop(job, None) is not None:
            self.changes += 1
            self.pages.give(live.pages)
            self.rows.give([live.row])
            live.pages, live.row = [], -1
        return report
