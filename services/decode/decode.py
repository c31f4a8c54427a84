"""The decode service: reserve, start, stream, replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from libs.bus.api import Bus
from libs.clock.api import Clock
from libs.engine import EngineFactory
from libs.lifecycle.tasks import Tasks
from libs.telemetry import count, get_logger, names, traceparent
from libs.worker import Attempt, Verb, Worker
from proto.control import Started
from proto.decode import DecodeStart, Replay, Replayed, Reserve
from proto.errors import ErrorCode, PdbusError
from proto.events import FINISHED
from proto.gateway import TokenChunk
from proto.host import Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.ids import InstanceId
from proto.ledger import Mode
from proto.output import Details
from proto.pairs import ANY_LANE, LanePolicy, PairsRequest
from proto.workers import Role
from services.decode.claim import claim
from services.decode.slots import Slots
from services.decode.stages import tell_broken_transfer, tell_cut, tell_stages

__all__ = ["DecodeService"]

_COUNT_EVERY = 32
"""Tokens of an attempt between two additions to the counter."""


class DecodeService:
    """Streams answers from one engine.

    Args:
        role: `DECODE` fetches KV from prefill workers; `AGGREGATED` computes prompts itself.
        kv_lanes: which lanes KV may take.
        probes: whether the way to each prefill engine is measured when it appears.
    """

    def __init__(  # noqa: PLR0913 - the ports and the identity
        self,
        *,
        bus: Bus,
        clock: Clock,
        tasks: Tasks,
        engines: EngineFactory,
        instance: InstanceId,
        stop: Callable[[], None] | None = None,
        role: Role = Role.DECODE,
        kv_lanes: LanePolicy = ANY_LANE,
        probes: bool = True,
    ) -> None:
        self.worker = Worker(
            bus=bus,
            clock=clock,
            tasks=tasks,
            engines=engines,
            role=role,
            instance=instance,
            lost=ErrorCode.DECODE_LOST,
            stop=stop,
            kv_lanes=kv_lanes,
        )
        self._probes = probes and role is Role.DECODE
        self._slots = Slots(self.worker)
        self.worker.verbs = (
            Verb("reserve", Reserve, self._slots.reserve),
            Verb("start", DecodeStart, self._handle_start),
            Verb("replay", Replay, self._handle_replay),
        )
        if self._probes:
            pairs = Verb("pairs", PairsRequest, self.worker.pairs.answer)
            self.worker.verbs = (*self.worker.verbs, pairs)

    async def start(self) -> None:
        """Begin to load the engine and to take work."""
        await self.worker.start()
        if self._probes:
            await self.worker.pairs.start()

    async def drain(self, grace_s: float) -> None:
        """Finish what runs, refuse the rest, end the engine."""
        await self.worker.drain(grace_s)

    def readiness(self) -> tuple[bool, str]:
        """Return whether work is accepted, and if not, why."""
        return self.worker.readiness()

    async def _handle_start(self, start: DecodeStart) -> Started:
        worker = self.worker
        if (start.rid, start.attempt) in worker.attempts:
            return Started(rid=start.rid, attempt=start.attempt, duplicate=True)
        worker.admit(start.rid, start.attempt, start.compat, start.not_after_ms)
        if worker.leases.get(start.rid, start.attempt) is None:
            raise PdbusError(ErrorCode.STALE_ATTEMPT, "there is no reservation any more")
        aggregated = start.mode is Mode.AGGREGATED
        if aggregated != (worker.role is Role.AGGREGATED) or aggregated != (start.source is None):
            raise PdbusError(ErrorCode.INTERNAL, f"{worker.role} cannot run {start.mode}")
        worker.begin(
            start.rid,
            start.attempt,
            start.reply,
            lambda a: self._run(a, start),
            offset=start.offset,
        )
        return Started(rid=start.rid, attempt=start.attempt)

    async def _handle_replay(self, ask: Replay) -> Replayed:
        attempt = self.worker.attempts.get((ask.rid, ask.attempt))
        if attempt is None:
            raise PdbusError(ErrorCode.UNKNOWN_REQUEST, "the attempt is not here any more")
        again = [
            m
            for m in attempt.log
            if not isinstance(m, TokenChunk) or m.finish or m.offset + m.count > ask.offset
        ]
        attempt.listen(ask.reply)
        for message in again:
            self.worker.speaker.tell(ask.reply, message)
        return Replayed(chunks=len(again), first=attempt.offset)

    async def _run(self, attempt: Attempt, start: DecodeStart) -> None:
        worker = self.worker
        engine = worker.living_engine()
        parent, state = traceparent()
        aggregated = start.mode is Mode.AGGREGATED
        job = Job(
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
        asked = claim(
            bus=worker.bus,
            clock=worker.clock,
            rid=attempt.rid,
            attempt=attempt.number,
            worker=worker.ref,
            gateway=start.reply.incarnation,
        )
        claimed = worker.tasks.spawn(asked, name="claim")
        first_ms: float | None = None
        outputs = engine.run(job)
        try:
            async for output in outputs:
                if isinstance(output, JobTokens):
                    if first_ms is None:
                        first_ms = worker.chronicle.now_ms()
                        await self._settle_claim(attempt, claimed)
                        # Nothing more has to be waited for: this task wakes for the end only.
                        outputs.hand_on(partial(self._emit, attempt))
                    self._emit(attempt, output)
                elif isinstance(output, JobFinished):
                    revision = await self._settle_claim(attempt, claimed)
                    self._finish(attempt, start, output, first_ms, revision)
                else:
                    claimed.cancel()
                    self._break(attempt, output, first_ms)
        finally:
            _count_tokens(attempt)

    async def _settle_claim(
        self, attempt: Attempt, claimed: asyncio.Task[int | ErrorCode | None]
    ) -> int:
        """Wait for the claim; return the revision of the record, where it is known."""
        refusal = await claimed
        if isinstance(refusal, int):
            return refusal
        if refusal is None or attempt.aborted is not None:
            return 0
        get_logger().warning("claim refused", rid=attempt.rid, code=refusal)
        await self.worker.abort(attempt.rid, attempt.number, f"claim refused: {refusal}")
        return 0

    def _emit(self, attempt: Attempt, output: JobTokens) -> None:
        if attempt.aborted is not None:
            return
        chunk = TokenChunk(
            attempt=attempt.number,
            offset=attempt.produced,
            ids=output.ids,
            text=output.text,
            sent_ms=self.worker.clock.unix_ms(),
            details=output.details,
        )
        attempt.produced += chunk.count
        attempt.log.append(chunk)
        self.worker.speaker.say(attempt, chunk)
        if attempt.produced - attempt.counted >= _COUNT_EVERY:
            _count_tokens(attempt)

    def _finish(
        self,
        attempt: Attempt,
        start: DecodeStart,
        done: JobFinished,
        first_ms: float | None,
        revision: int,
    ) -> None:
        attempt.quiet = True
        if attempt.aborted is not None:
            return
        chunk = TokenChunk(
            attempt=attempt.number,
            offset=attempt.produced,
            ids=b"",
            text=done.text,
            sent_ms=self.worker.clock.unix_ms(),
            finish=done.finish,
            total=attempt.produced,
            prompt_tokens=done.prompt_tokens,
            cached_tokens=done.cached_tokens,
            details=_last_details(done),
            revision=revision,
            freed=True,
        )
        attempt.log.append(chunk)
        # The chunk leaves after this turn of the loop: what it says of the lease is true then.
        self.worker.speaker.say(attempt, chunk)
        tell_stages(self.worker.chronicle, attempt, start, done, first_ms)
        self.worker.end_lease(attempt.rid, attempt.number, FINISHED)

    def _break(self, attempt: Attempt, failed: JobFailed, first_ms: float | None) -> None:
        attempt.quiet = True
        tell_cut(self.worker.chronicle, attempt, failed.code, first_ms)
        moved = failed.transfer
        if moved is not None and moved.moved_bytes != moved.expected_bytes and not attempt.aborted:
            tell_broken_transfer(self.worker.chronicle, attempt, failed.code, moved)
        self.worker.speaker.fail(attempt, failed.code, failed.detail)


def _count_tokens(attempt: Attempt) -> None:
    count(names.DECODE_TOKENS, attempt.produced - attempt.counted)
    attempt.counted = attempt.produced


def _last_details(done: JobFinished) -> Details | None:
    if not done.reasoning_tokens:
        return done.details
    known = Details() if done.details is None else done.details
    return msgspec.structs.replace(known, reasoning_tokens=done.reasoning_tokens)
