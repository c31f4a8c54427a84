"""The prefill service: one start a prompt, one KV hand-over a start."""

from __future__ import annotations

from collections.abc import Callable

from libs.bus.api import Bus
from libs.clock.api import Clock
from libs.engine import EngineFactory
from libs.lifecycle.tasks import Tasks
from libs.telemetry import count, names, observe, traceparent
from libs.worker import Attempt, Verb, Worker
from proto.control import Started
from proto.errors import ErrorCode, PdbusError
from proto.events import EventKind
from proto.gateway import StillHere
from proto.host import EngineReady, Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.ids import InstanceId
from proto.pairs import ANY_LANE, LanePolicy
from proto.prefill import PrefillStart
from proto.workers import Role
from services.prefill.lanes import LaneWatch

__all__ = ["PrefillService"]


class PrefillService:
    """Runs prompts on one engine and tells the gateway how each went."""

    def __init__(  # noqa: PLR0913 - the ports and the identity
        self,
        *,
        bus: Bus,
        clock: Clock,
        tasks: Tasks,
        engines: EngineFactory,
        instance: InstanceId,
        stop: Callable[[], None] | None = None,
        kv_lanes: LanePolicy = ANY_LANE,
    ) -> None:
        self.worker = Worker(
            bus=bus,
            clock=clock,
            tasks=tasks,
            engines=engines,
            role=Role.PREFILL,
            instance=instance,
            lost=ErrorCode.PREFILL_LOST,
            stop=stop,
            kv_lanes=kv_lanes,
        )
        self.worker.verbs = (Verb("start", PrefillStart, self._handle_start),)
        self._lanes = LaneWatch(self.worker)
        self.worker.trouble = self._lanes.trouble

    async def start(self) -> None:
        """Begin to load the engine and to take work."""
        await self.worker.start()
        await self._lanes.start()

    async def drain(self, grace_s: float) -> None:
        """Finish what runs, refuse the rest, end the engine."""
        await self.worker.drain(grace_s)
        await self._lanes.close()

    def readiness(self) -> tuple[bool, str]:
        """Return whether work is accepted, and if not, why."""
        return self.worker.readiness()

    def _handle_start(self, start: PrefillStart) -> Started:
        worker = self.worker
        if (start.rid, start.attempt) in worker.attempts:
            return Started(rid=start.rid, attempt=start.attempt, duplicate=True)
        ready = worker.admit(start.rid, start.attempt, start.compat, start.not_after_ms)
        if worker.clock.unix_ms() > start.write_by_ms:
            raise PdbusError(ErrorCode.DEADLINE, "the time to move the KV has passed")
        _check_fits(start, ready)
        tokens = len(start.input_ids) // 4
        worker.leases.open(start.rid, start.attempt, tokens, worker.clock.monotonic())
        worker.begin(
            start.rid, start.attempt, start.reply, lambda attempt: _Handing(worker, attempt, start)
        )
        worker.note()
        return Started(rid=start.rid, attempt=start.attempt)


class _Handing:
    """What prefill makes of one attempt: it hands over KV and tells how that went.

    Implements `libs.worker.Work`.
    """

    def __init__(self, worker: Worker, attempt: Attempt, start: PrefillStart) -> None:
        self._worker = worker
        self._attempt = attempt
        parent, state = traceparent()
        self.job = Job(
            job=attempt.job,
            kind=JobKind.PREFILL,
            input_ids=start.input_ids,
            sampling=start.sampling,
            room=start.room,
            asker=start.asker,
            traceparent=parent,
            tracestate=state,
            cache_salt=start.cache_salt,
        )

    def take(self, tokens: JobTokens) -> None:
        """Take no notice: prefill says nothing."""

    def take_plain(self, ids: bytes, text: str) -> None:
        """Take no notice."""

    def last(self, output: JobFinished | JobFailed) -> bool:
        """Tell how it went."""
        worker, attempt = self._worker, self._attempt
        attempt.quiet = True
        if isinstance(output, JobFailed):
            worker.chronicle.cut(
                EventKind.STAGE_PREFILL,
                attempt.rid,
                attempt.number,
                attempt.started_ms,
                output.code,
            )
            worker.speaker.fail(attempt, output.code, output.detail)
            return True
        self._tell(output)
        # It leaves after this turn of the loop: what it says of the lease is true then.
        done = StillHere(attempt=attempt.number, role=Role.PREFILL, final=True, freed=True)
        attempt.log.append(done)
        worker.speaker.say(attempt, done)
        return True

    def lost(self) -> None:
        """Nothing is left to be given up."""

    def _tell(self, done: JobFinished) -> None:
        chronicle, attempt = self._worker.chronicle, self._attempt
        count(names.PREFILL_TOKENS, done.prompt_tokens - done.cached_tokens)
        forward_ms = attempt.started_ms + done.queue_s * 1000
        computed_ms = forward_ms + done.forward_s * 1000
        chronicle.stage(
            EventKind.STAGE_PREFILL_QUEUE,
            attempt.rid,
            attempt.number,
            attempt.started_ms,
            forward_ms,
        )
        sent = done.transfer
        chronicle.stage(
            EventKind.STAGE_PREFILL,
            attempt.rid,
            attempt.number,
            forward_ms,
            computed_ms,
            tokens=done.prompt_tokens,
            cached_tokens=done.cached_tokens,
            chunks=sent.chunks if sent else 0,
            bytes=sent.moved_bytes if sent else 0,
            lane=str(sent.lane) if sent else "",
            copy_s=round(sent.copy_s, 6) if sent else 0.0,
        )
        if sent is not None:
            lane = str(sent.lane)
            count(names.KV_TRANSFERS, role="prefill", lane=lane)
            count(names.KV_TRANSFER_BYTES, sent.moved_bytes, role="prefill", lane=lane)
            count(names.KV_EXPECTED_BYTES, sent.expected_bytes, role="prefill", lane=lane)
            observe(names.KV_TRANSFER_COPY_SECONDS, sent.copy_s, role="prefill", lane=lane)


def _check_fits(start: PrefillStart, ready: EngineReady) -> None:
    tokens = len(start.input_ids) // 4
    if tokens > ready.max_request_tokens:
        detail = f"{tokens} tokens do not fit {ready.max_request_tokens}"
        raise PdbusError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, detail)
