"""A real engine for CPUs, without weights: paged KV, transfers, batching, scripted faults.

Its answers are a function of the KV bytes that it holds (`libs.engine.script.answer`), its speed
follows a profile, its failures a script. Everything runs on the host's loop; only the data plane
has a thread of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from pathlib import Path

import msgspec
import numpy as np

from libs.clock import Clock, SystemClock
from libs.engine.api import Engine, EngineDead
from libs.engine.options import HostOptions
from libs.engine.parse import AnswerShaper, Parsers, UnreadableTools, load_parsers
from libs.engine.script.answer import Model
from libs.engine.script.batch import Batch
from libs.engine.script.compute import Compute
from libs.engine.script.faults import FaultPlan
from libs.engine.script.jobs import Jobs
from libs.engine.script.live import LiveJob
from libs.engine.script.memory import KvMemory, PageAllocator
from libs.engine.script.plane import OpenPlane, open_ucx
from libs.engine.script.settings import Action
from libs.engine.script.speech import Bend
from libs.engine.script.text import StopFilter, Vocabulary, load_vocabulary, plain_vocabulary
from libs.engine.script.transfer import Transfers
from libs.engine.stream import OutputStream
from libs.transfer.api import DataPlane
from proto.errors import ErrorCode, PdbusError
from proto.host import EngineLoad, EngineReady, Job, JobFailed, JobKind
from proto.ids import Incarnation, JobId
from proto.kv import PeerAddress
from proto.pairs import PairProbe
from proto.workers import CompatCard, Feature, Role

__all__ = ["ScriptedEngine", "build", "card_of", "model_of", "vocabulary_of"]


class ScriptedEngine:
    """The engine port, in this process.

    Args:
        options: shape, speed, answers and faults.
        clock: paces the steps.
        open_plane: opens the data plane; not called for an aggregated engine.
        crash: what a scripted crash does.
        parsers: take answers apart, where the model is said to need it.
    """

    def __init__(
        self,
        options: HostOptions,
        clock: Clock,
        *,
        open_plane: OpenPlane,
        crash: Callable[[], None],
        parsers: Parsers | None = None,
    ) -> None:
        self._options = options
        self._parsers = parsers
        self._clock = clock
        self._open_plane = open_plane
        self._crash = crash
        self._vocabulary = vocabulary_of(options)
        self._model = model_of(options, self._vocabulary)
        self._faults = FaultPlan(options.script.faults, options.script.seed, self._vocabulary)
        pages = max(1, options.kv_tokens // options.page_size)
        self._total = pages * options.page_size
        self._longest = min(options.context_tokens, self._total)
        memory = KvMemory(
            pages=pages,
            page_size=options.page_size,
            buffers=self._model.buffers,
            words=self._model.words,
            rows=options.slots,
            places=self._total,
        )
        self._jobs = Jobs(memory, PageAllocator(pages), PageAllocator(options.slots))
        self._plane: DataPlane | None = None
        self._batch: Batch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._dead: str | None = None
        self._gone = asyncio.Event()

    @property
    def incarnation(self) -> Incarnation:
        """The name of this life of the engine."""
        return self._options.incarnation

    async def start(self) -> EngineReady:
        """Open the data plane and begin to step.

        Raises:
            EngineDead: a scripted fault, or no lane could be opened.
        """
        await self._clock.sleep(self._options.script.profile.start_s)
        await self._strike_start()
        self._loop = asyncio.get_running_loop()
        card = card_of(self._options, self._vocabulary)
        if self._options.role is not Role.AGGREGATED:
            self._plane = self._open(card)
        self._batch = Batch(
            self._jobs,
            Compute(self._model, self._jobs.memory),
            None if self._plane is None else Transfers(self._plane, self._jobs),
            self._faults,
            self._options.script.profile,
            crash=self._crash,
        )
        self._runner = asyncio.create_task(self._run(self._batch), name="scripted steps")
        self._runner.add_done_callback(self._ended)
        return EngineReady(
            card=card,
            address=None if self._plane is None else self._plane.address,
            slots=self._options.slots,
            kv_total_tokens=self._total,
            max_request_tokens=self._longest,
            pids=(os.getpid(),),
            features=self._features(),
        )

    def run(self, job: Job) -> OutputStream:
        """Compute a job; it is queued before this returns."""
        if self._batch is None or self._dead is not None:
            raise EngineDead(self._dead or "the engine has not started")
        try:
            stream = self._stream(job)
        except UnreadableTools as error:
            return _refused(job, ErrorCode.INVALID_VALUE, str(error))
        refusal = self._refusal(job)
        if refusal is not None:
            stream.push(refusal)
            return stream
        live = LiveJob(
            job=job,
            stream=stream,
            prompt=np.frombuffer(job.input_ids, dtype="<u4"),
            arrived=self._clock.monotonic(),
            text=self._vocabulary.stream(skip_special=not self._shows_marks(job)),
            stops=StopFilter(job.sampling.stop),
            bend=Bend.of(job.sampling),
        )
        self._batch.add(live)
        self._wake.set()
        return stream

    async def abort(self, job: JobId) -> None:
        """Stop a job; all that it held is free when this returns."""
        if self._dead is not None:
            raise EngineDead(self._dead)
        live = self._jobs.get(job)
        if live is not None:
            self._jobs.fail(live, ErrorCode.CANCELLED, "aborted")
            self._wake.set()

    async def probe(self, source: PeerAddress) -> PairProbe:
        """Have the data plane measure the way to a prefill engine."""
        if self._plane is None:
            return PairProbe(code=ErrorCode.ENGINE_ERROR, detail="this engine has no data plane")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[PairProbe] = loop.create_future()

        def tell(found: PairProbe) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(_settle, answer, found)

        self._plane.probe(source, tell)
        return await answer

    def load(self) -> EngineLoad:
        """Return the truth of this moment."""
        stats = None if self._plane is None else self._plane.stats
        return EngineLoad(
            running=len(self._jobs.admitted),
            waiting=len(self._jobs.queued),
            kv_used_tokens=self._jobs.used_tokens,
            kv_total_tokens=self._total,
            open_rooms=0 if stats is None else stats.open_rooms,
            dropped_chunks=0 if stats is None else stats.dropped_chunks,
            unshared_links=0 if stats is None else stats.unshared_links,
        )

    async def wait_dead(self) -> str:
        """Wait until the engine has ended; return why."""
        await self._gone.wait()
        return self._dead or ""

    async def stop(self) -> None:
        """End all jobs and the data plane."""
        self._die("stopped")
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.wait({runner})
        if self._plane is not None:
            self._plane.close()

    async def _run(self, batch: Batch) -> None:
        clock = self._clock
        while True:
            self._wake.clear()
            now = clock.monotonic()
            step = batch.plan(now)
            if step.empty:
                await self._idle(batch, now)
                continue
            await clock.sleep(step.seconds)
            batch.apply(step, clock.monotonic())

    async def _idle(self, batch: Batch, planned: float) -> None:
        # What has fallen due since the plan was made was not part of it.
        until = batch.next_time(planned)
        if not isfinite(until):
            await self._wake.wait()
            return
        with suppress(TimeoutError):  # a held job may go on
            async with asyncio.timeout(max(0.0, until - self._clock.monotonic())):
                await self._wake.wait()

    def _features(self) -> tuple[Feature, ...]:
        claimed = (Feature.GUIDES,) if self._options.script.guides else ()
        parsed = self._parsers.features if self._parsers is not None else ()
        return (Feature.LOGPROBS, *claimed, *parsed)

    def _stream(self, job: Job) -> OutputStream:
        parser = self._parsers.parser(job) if self._parsers is not None else None
        return OutputStream(AnswerShaper(parser) if parser is not None else None)

    def _shows_marks(self, job: Job) -> bool:
        wanted = self._parsers is not None and self._parsers.wants_marks(job)
        return wanted or not job.sampling.skip_special_tokens

    def _refusal(self, job: Job) -> JobFailed | None:
        tokens = len(job.input_ids) // 4
        total = tokens if job.kind is JobKind.PREFILL else tokens + job.sampling.max_tokens
        if self._jobs.get(job.job) is not None:
            return JobFailed(job=job.job, code=ErrorCode.ENGINE_ERROR, detail="job id is live")
        if not tokens or len(job.input_ids) % 4:
            return JobFailed(job=job.job, code=ErrorCode.INVALID_REQUEST, detail="no prompt")
        if total > self._longest:
            detail = f"{total} tokens are needed and at most {self._longest} fit"
            return JobFailed(job=job.job, code=ErrorCode.CONTEXT_LENGTH_EXCEEDED, detail=detail)
        return None

    async def _strike_start(self) -> None:
        for fault in self._faults.start():
            match fault.action:
                case Action.ERROR:
                    raise EngineDead("scripted error at the start")
                case Action.CRASH:
                    self._crash()
                case Action.STALL if not fault.seconds:
                    await asyncio.Event().wait()
                case _:
                    await self._clock.sleep(fault.seconds)

    def _open(self, card: CompatCard) -> DataPlane:
        try:
            return self._open_plane(self._options, self._jobs.memory, card, self._wake_from_thread)
        except PdbusError as error:
            raise EngineDead(str(error)) from error

    def _wake_from_thread(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake.set)

    def _ended(self, runner: asyncio.Task[None]) -> None:
        if not runner.cancelled() and (error := runner.exception()) is not None:
            self._die(f"the step loop failed: {error!r}")

    def _die(self, reason: str) -> None:
        if self._dead is not None:
            return
        self._dead = reason
        for live in [*self._jobs.queued.values(), *self._jobs.admitted.values()]:
            live.stream.fail(EngineDead(reason))
        self._gone.set()


def build(options: HostOptions) -> tuple[Engine, None]:
    """Return a scripted engine for this process.

    Raises:
        EngineDead: the model folder has no usable tokenizer, or a parser cannot be had.
    """
    try:
        parsers = None
        if options.role is not Role.PREFILL and (options.tool_parser or options.reasoning_parser):
            parsers = load_parsers(options.tool_parser, options.reasoning_parser, light=True)
        engine = ScriptedEngine(
            options, SystemClock(), open_plane=open_ucx, crash=_crash, parsers=parsers
        )
    except ValueError as error:
        raise EngineDead(str(error)) from error
    return engine, None


def vocabulary_of(options: HostOptions) -> Vocabulary:
    """Return the tokens of the model folder, or made-up ones if there is no folder."""
    if options.model_path:
        return load_vocabulary(Path(options.model_path))
    return plain_vocabulary(options.script.vocab)


def model_of(options: HostOptions, vocabulary: Vocabulary) -> Model:
    """Return the model whose `reference` answers equal those of the engine."""
    script = options.script
    return Model(
        alphabet=vocabulary.alphabet,
        seed=script.seed,
        buffers=script.layers * 2,
        words=script.kv_heads * script.head_dim // 4,
        answer=script.answer,
        answer_tokens=script.answer_tokens,
        read_out=vocabulary.read_out,
    )


def card_of(options: HostOptions, vocabulary: Vocabulary) -> CompatCard:
    """Return the compatibility card of a scripted engine."""
    script = options.script
    identity = f"scripted {script.seed} {script.answer} {script.answer_tokens} {vocabulary.digest}"
    card = CompatCard(
        model=options.served_model,
        revision=hashlib.sha256(identity.encode()).hexdigest()[:16],
        tokenizer=vocabulary.digest,
        dtype="float16",
        kv_dtype="float16",
        kv_layout="token-major",
        page_size=options.page_size,
        layers=script.layers,
        kv_heads=script.kv_heads,
        head_dim=script.head_dim,
        attention="hash",
        engine="scripted",
        engine_version="1",
        context_tokens=options.context_tokens,
    )
    plain: dict[str, object] = msgspec.to_builtins(card)
    return msgspec.convert(plain | script.claims, CompatCard)


def _settle(answer: asyncio.Future[PairProbe], found: PairProbe) -> None:
    if not answer.done():
        answer.set_result(found)


def _refused(job: Job, code: ErrorCode, detail: str) -> OutputStream:
    stream = OutputStream()
    stream.push(JobFailed(job=job.job, code=code, detail=detail))
    return stream


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
