"""One answer of a decode worker: its claim, its tokens, its end.

Everything here is called where it arrives; only the claim, which waits for a router, is a task.
"""

from __future__ import annotations

import asyncio

import msgspec

from libs.telemetry import count, get_logger, names, traceparent
from libs.worker import Attempt, Worker, contained
from proto.decode import DecodeStart
from proto.errors import ErrorCode
from proto.gateway import TokenChunk
from proto.host import Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.ledger import Mode
from proto.output import Details
from services.decode.claim import claim
from services.decode.stages import tell_broken_transfer, tell_cut, tell_stages

__all__ = ["Answering"]

_COUNT_EVERY = 32
"""Tokens of an attempt between two additions to the counter."""


class Answering:
    """What decode makes of one attempt: nothing is said before the claim is settled.

    Implements `libs.worker.Work`.
    """

    def __init__(self, worker: Worker, attempt: Attempt, start: DecodeStart) -> None:
        self.job = _job_of(attempt, start)
        self._worker = worker
        self._attempt = attempt
        self._start = start
        self._now_ms = worker.clock.unix_ms
        self._speak = worker.speaker.say
        self._first_ms: float | None = None
        """When the engine gave its first token."""
        self._waiting: list[tuple[bytes, str, Details | None]] | None = []
        """Tokens that came before the claim was settled; None from then on."""
        self._revision = 0
        """Of the record that names this attempt, where it is known."""
        self._ended: JobFinished | JobFailed | None = None
        """The end that came before it."""
        asked = claim(
            bus=worker.bus,
            clock=worker.clock,
            rid=attempt.rid,
            attempt=attempt.number,
            worker=worker.ref,
            gateway=start.reply.incarnation,
        )
        self._claim = worker.tasks.spawn(asked, name="claim")
        self._claim.add_done_callback(self._settle)

    def take(self, tokens: JobTokens) -> None:
        """Say tokens, or keep them until the claim is settled."""
        self.take_plain(tokens.ids, tokens.text, tokens.details)

    def take_plain(self, ids: bytes, text: str, details: Details | None = None) -> None:
        """Say tokens, or keep them until the claim is settled."""
        if self._first_ms is None:
            self._first_ms = self._worker.chronicle.now_ms()
        if self._waiting is not None:
            self._waiting.append((ids, text, details))
            return
        attempt = self._attempt
        if attempt.aborted is not None:
            return
        offset = attempt.produced
        chunk = TokenChunk(
            attempt=attempt.number,
            offset=offset,
            ids=ids,
            text=text,
            sent_ms=self._now_ms(),
            details=details,
        )
        attempt.produced = produced = offset + len(ids) // 4
        attempt.log.append(chunk)
        self._speak(attempt, chunk)
        if produced - attempt.counted >= _COUNT_EVERY:
            _count_tokens(attempt)

    def last(self, output: JobFinished | JobFailed) -> bool:
        """Tell the end, or keep it until the claim is settled."""
        if self._waiting is not None and self._must_wait(output):
            self._ended = output
            return False
        if isinstance(output, JobFailed):
            self.lost()
        self._close(output)
        return True

    def _must_wait(self, output: JobFinished | JobFailed) -> bool:
        """Return whether an end waits for the claim: so does what came before it."""
        if isinstance(output, JobFailed):
            return bool(self._waiting) and self._attempt.aborted is None
        return True

    def lost(self) -> None:
        """Wait for the claim no more."""
        self._waiting = None
        self._claim.cancel()
        _count_tokens(self._attempt)

    def _settle(self, claimed: asyncio.Task[int | ErrorCode | None]) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        with contained("claim"):
            if claimed.cancelled():
                # The process ends.
                return
            answer = claimed.result()
            if isinstance(answer, int):
                self._revision = answer
            elif answer is not None and self._attempt.aborted is None:
                self._refuse(answer)
            for tokens in waiting:
                self.take_plain(*tokens)
            if self._ended is not None:
                self._close(self._ended)
        if self._ended is not None:
            _count_tokens(self._attempt)
            self._worker.end(self._attempt)

    def _refuse(self, refusal: ErrorCode) -> None:
        attempt, worker = self._attempt, self._worker
        get_logger().warning("claim refused", rid=attempt.rid, code=refusal)
        # From now on nothing is said, though the engine may still speak.
        attempt.aborted = f"claim refused: {refusal}"
        abort = worker.abort(attempt.rid, attempt.number, attempt.aborted)
        worker.tasks.spawn(abort, name="claim refused")

    def _close(self, output: JobFinished | JobFailed) -> None:
        if isinstance(output, JobFailed):
            self._break(output)
        else:
            self._finish(output)

    def _finish(self, done: JobFinished) -> None:
        attempt = self._attempt
        attempt.quiet = True
        _count_tokens(attempt)
        if attempt.aborted is not None:
            return
        chunk = TokenChunk(
            attempt=attempt.number,
            offset=attempt.produced,
            ids=b"",
            text=done.text,
            sent_ms=self._worker.clock.unix_ms(),
            finish=done.finish,
            total=attempt.produced,
            prompt_tokens=done.prompt_tokens,
            cached_tokens=done.cached_tokens,
            details=_last_details(done),
            revision=self._revision,
            freed=True,
        )
        attempt.log.append(chunk)
        # It leaves after this turn of the loop: what it says of the lease is true then.
        self._worker.speaker.say(attempt, chunk)
        tell_stages(self._worker.chronicle, attempt, self._start, done, self._first_ms)

    def _break(self, failed: JobFailed) -> None:
        attempt, chronicle = self._attempt, self._worker.chronicle
        attempt.quiet = True
        tell_cut(chronicle, attempt, failed.code, self._first_ms)
        moved = failed.transfer
        if moved is not None and moved.moved_bytes != moved.expected_bytes and not attempt.aborted:
            tell_broken_transfer(chronicle, attempt, failed.code, moved)
        self._worker.speaker.fail(attempt, failed.code, failed.detail)


def _job_of(attempt: Attempt, start: DecodeStart) -> Job:
    parent, state = traceparent()
    aggregated = start.mode is Mode.AGGREGATED
    return Job(
        job=attempt.job,
        kind=JobKind.AGGREGATED if aggregated else JobKind.DECODE,
        input_ids=start.input_ids,
        sampling=start.sampling,
        room=start.room,
        source=start.source,
        traceparent=parent,
        tracestate=state,
        parsing=start.parsing,
        cache_salt=start.cache_salt,
    )


def _count_tokens(attempt: Attempt) -> None:
    count(names.DECODE_TOKENS, attempt.produced - attempt.counted)
    attempt.counted = attempt.produced


def _last_details(done: JobFinished) -> Details | None:
    if not done.reasoning_tokens:
        return done.details
    known = Details() if done.details is None else done.details
    return msgspec.structs.replace(known, reasoning_tokens=done.reasoning_tokens)
