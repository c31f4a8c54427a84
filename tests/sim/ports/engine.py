"""The engine port, simulated: paged memory with owners, prefill, decode, aborts and crashes.

The answer is a function of the KV contents that decode reads from its own pages, so that a lost,
stale or foreign page shows as a wrong answer.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Self

from libs.engine import EngineDead
from libs.engine.api import Plain
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import (
    EngineLoad,
    EngineReady,
    Job,
    JobFailed,
    JobFinished,
    JobKind,
    JobOutput,
    JobTokens,
)
from proto.ids import Incarnation, JobId
from proto.kv import Lane, PeerAddress, TransferReport
from proto.pairs import PairProbe
from proto.workers import CompatCard
from tests.sim.kernel.loop import Domain, SimLoop
from tests.sim.ports.answers import PAGE_TOKENS, Continuation, TextFlow, chance_of, page_contents
from tests.sim.ports.memory import Memory
from tests.sim.ports.plane import End, PlaneEnd, SimDataPlane

__all__ = ["CARD", "EngineHooks", "EngineSettings", "SimEngine"]

CARD = CompatCard(
    model="sim",
    revision="1",
    tokenizer="sim",
    dtype="float32",
    kv_dtype="float32",
    kv_layout="sim",
    page_size=PAGE_TOKENS,
    layers=1,
    kv_heads=1,
    head_dim=32,
    engine="sim",
    context_tokens=1024,
)


@dataclass(slots=True)
class EngineSettings:
    """Size and speed of one engine; faults change the speed while it runs."""

    pages: int = 192
    slots: int = 4
    chunk_tokens: int = 32
    prefill_tokens_s: float = 2000.0
    step_s: float = 0.03
    load_s: float = 0.5
    slow: float = 1.0
    """Factor on all compute times."""
    linger_s: float = 0.0
    """How long an aborted job holds its pages, until nobody can write to them any more."""


def _nothing(_job: Job) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class EngineHooks:
    """Who is told of what an engine does, for the checks."""

    came: Callable[[Job], None] = _nothing
    """A job arrived."""
    began: Callable[[Job], None] = _nothing
    """A prompt begins to be computed."""
    computed: Callable[[Job], None] = _nothing
    """A prompt has been computed."""
    first_token: Callable[[Job], None] = _nothing


@dataclass(slots=True, eq=False)
class _Running:
    job: Job
    outputs: asyncio.Queue[JobOutput | str]
    """A string is the death of the engine, and its reason."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: bool = False
    arrived: float = 0.0
    begun: float = 0.0
    transfer: TransferReport | None = None


class _Stopped(Exception):
    """The job cannot go on."""

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class SimOutputs:
    """Implements `libs.engine.Outputs`: all is read in the process of whoever asks."""

    def __init__(self, outputs: AsyncGenerator[JobOutput, None]) -> None:
        self._outputs = outputs

    def deliver(
        self,
        take: Callable[[JobTokens], None],
        last: Callable[[JobFinished | JobFailed], None],
        fail: Callable[[EngineDead], None] | None = None,
        plain: Plain | None = None,
    ) -> None:
        """Read all, in the process of whoever asks."""
        reading = self._read(take, last, fail, plain)
        asyncio.get_running_loop().create_task(reading, name="read outputs")

    async def _read(
        self,
        take: Callable[[JobTokens], None],
        last: Callable[[JobFinished | JobFailed], None],
        fail: Callable[[EngineDead], None] | None,
        plain: Plain | None,
    ) -> None:
        try:
            async for output in self._outputs:
                if isinstance(output, JobTokens) and plain is not None and output.details is None:
                    plain(output.ids, output.text)
                elif isinstance(output, JobTokens):
                    take(output)
                else:
                    last(output)
        except EngineDead as error:
            if fail is not None:
                fail(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobOutput:
        return await anext(self._outputs)


class SimEngine:
    """One incarnation of a simulated engine, in a process of its own.

    Args:
        loop: virtual time.
        plane: how KV moves.
        name: of the worker process; cuts of the plane are between names.
        incarnation: the name of this life.
        settings: size and speed, shared by all lives of one worker.
        card: what it must agree in with its peers; a mere label here.
        hooks: who watches.
    """

    def __init__(
        self,
        *,
        loop: SimLoop,
        plane: SimDataPlane,
        name: str,
        incarnation: Incarnation,
        settings: EngineSettings,
        card: CompatCard = CARD,
        hooks: EngineHooks = EngineHooks(),
    ) -> None:
        self._loop = loop
        self._plane = plane
        self._settings = settings
        self._hooks = hooks
        self._incarnation = incarnation
        self._dead: asyncio.Future[str] = loop.create_future()
        self._jobs: dict[JobId, _Running] = {}
        self._end: PlaneEnd | None = None
        self._turn = asyncio.Lock()
        self._slots = asyncio.Semaphore(settings.slots)
        self.card = card
        self.name = name
        self.domain = Domain(f"{name}/engine")
        self.memory = Memory(settings.pages, plane.trace, name)

    @property
    def incarnation(self) -> Incarnation:
        """The name of this life."""
        return self._incarnation

    @property
    def jobs(self) -> list[JobId]:
        """What the engine holds now."""
        return list(self._jobs)

    @property
    def alive(self) -> bool:
        """Whether it loads or runs."""
        return not self._dead.done()

    async def start(self) -> EngineReady:
        """Load."""
        loading = self._loop.create_future()
        self._plane.later(self._settings.load_s * self._settings.slow, _resolve, loading)
        await asyncio.wait({loading, self._dead}, return_when=asyncio.FIRST_COMPLETED)
        if self._dead.done():
            raise EngineDead(self._dead.result())
        self._end = self._plane.join(self.name, self._incarnation, self.card.digest)
        return EngineReady(
            card=self.card,
            address=PeerAddress(incarnation=self._incarnation, host="sim"),
            slots=self._settings.slots,
            kv_total_tokens=self._settings.pages * PAGE_TOKENS,
            max_request_tokens=self._settings.pages * PAGE_TOKENS,
        )

    def run(self, job: Job) -> SimOutputs:
        """Compute a job, from the first read of its outputs on."""
        return SimOutputs(self._outputs(job))

    async def _outputs(self, job: Job) -> AsyncGenerator[JobOutput, None]:
        self._check_alive()
        if job.job in self._jobs:
            yield JobFailed(job=job.job, code=ErrorCode.INTERNAL, detail="the job id is in use")
            return
        running = _Running(job, asyncio.Queue(), arrived=self._loop.time())
        self._jobs[job.job] = running
        self._hooks.came(job)
        self._loop.spawn(self.domain, self._work(running), name=f"job {job.job}")
        while True:
            output = await running.outputs.get()
            if isinstance(output, str):
                raise EngineDead(output)
            yield output
            if not isinstance(output, JobTokens):
                return

    async def abort(self, job: JobId) -> None:
        """Stop a job at its next edge."""
        self._check_alive()
        await asyncio.sleep(0.0003)
        running = self._jobs.get(job)
        if running is not None:
            running.aborted = True
            running.wake.set()

    async def probe(self, source: PeerAddress) -> PairProbe:
        """Find every way short; cuts of the data plane are for transfers to find."""
        self._check_alive()
        await asyncio.sleep(0.001)
        return PairProbe(lane=Lane.LOCAL)

    def load(self) -> EngineLoad:
        """Return the figures of now."""
        begun = sum(1 for job in self._jobs.values() if job.begun)
        return EngineLoad(
            running=begun,
            waiting=len(self._jobs) - begun,
            kv_used_tokens=self.memory.used * PAGE_TOKENS,
            kv_total_tokens=self._settings.pages * PAGE_TOKENS,
            dropped_chunks=self._end.dropped if self._end else 0,
        )

    async def wait_dead(self) -> str:
        """Wait for the end; return why."""
        await asyncio.wait({self._dead})
        return self._dead.result()

    async def stop(self) -> None:
        """End in order."""
        await asyncio.sleep(0.01)
        self.crash("stopped")

    def crash(self, why: str) -> None:
        """Die now; the memory is gone, whoever waits is told."""
        if self._dead.done():
            return
        self._plane.trace.note("engine", f"{self.name} {self._incarnation} dies: {why}")
        self._dead.set_result(why)
        self._loop.kill(self.domain)
        if self._end is not None:
            self._plane.die(self._end)
        for running in self._jobs.values():
            running.outputs.put_nowait(why)
        self._jobs.clear()
        self.memory.clear()

    def _check_alive(self) -> None:
        if self._dead.done():
            raise EngineDead(self._dead.result())
        if self._end is None:
            message = "the engine has not started"
            raise EngineDead(message)

    async def _work(self, running: _Running) -> None:
        job = running.job
        last: JobOutput
        try:
            if job.kind is JobKind.PREFILL:
                last = await self._prefill(running)
            else:
                async with self._slots:
                    last = await self._decode(running)
        except _Stopped as stop:
            if self._settings.linger_s:
                await asyncio.sleep(self._settings.linger_s)
            last = JobFailed(
                job=job.job, code=stop.code, detail=stop.detail, transfer=running.transfer
            )
        finally:
            self.memory.free(job.job)
        del self._jobs[job.job]
        running.outputs.put_nowait(last)

    async def _prefill(self, running: _Running) -> JobFinished:
        job = running.job
        end = self._end
        assert end is not None
        offer = self._plane.offer(end, job.room, running.wake.set)
        try:
            async with self._turn:
                await self._allocate(running, len(job.input_ids) // 4)
                await self._compute(
                    running, lambda pages, last: self._plane.push(offer, pages, last=last)
                )
            while offer.state is End.OPEN:
                _check(running)
                running.wake.clear()
                await running.wake.wait()
        except _Stopped:
            self._plane.abort_offer(offer)
            raise
        if offer.state is End.FAILED:
            self._plane.abort_offer(offer)
            raise _Stopped(ErrorCode.KV_TRANSFER_FAILED, offer.failure)
        return self._finished(running, FinishReason.LENGTH, 0)

    async def _compute(self, running: _Running, push: Callable[[list[int], bool], None]) -> None:
        job = running.job
        running.begun = self._loop.time()
        self._hooks.began(job)
        pages = page_contents(job.input_ids)
        width = max(1, self._settings.chunk_tokens // PAGE_TOKENS)
        for first in range(0, len(pages), width):
            chunk = pages[first : first + width]
            tokens = len(chunk) * PAGE_TOKENS
            await asyncio.sleep(tokens / self._settings.prefill_tokens_s * self._settings.slow)
            _check(running)
            for place, content in enumerate(chunk):
                self.memory.write(job.job, first + place, content)
            push(self.memory.read(job.job, first, len(chunk)), first + width >= len(pages))
        self._hooks.computed(job)

    async def _decode(self, running: _Running) -> JobFinished:
        job = running.job
        _check(running)
        prompt = len(job.input_ids) // 4
        await self._allocate(running, prompt + job.sampling.max_tokens)
        if job.kind is JobKind.AGGREGATED:
            async with self._turn:
                await self._compute(running, lambda _pages, _last: None)
        else:
            running.begun = self._loop.time()
            await self._receive(running, prompt)
        return await self._generate(running, prompt)

    async def _generate(self, running: _Running, prompt: int) -> JobFinished:
        job, memory, most = running.job, self.memory, running.job.sampling.max_tokens
        pages = memory.read(job.job, 0, -(-prompt // PAGE_TOKENS))
        flow, text = Continuation(pages, prompt), TextFlow()
        chance = chance_of(int(job.job[26:] or 0), job.sampling.temperature)
        for place in range(most):
            await asyncio.sleep(self._settings.step_s * self._settings.slow)
            _check(running)
            if not flow.begins_page:
                flow.partial = memory.read(job.job, flow.page, 1)[0]
            token, stop = flow.draw(chance)
            stop = stop and not job.sampling.ignore_eos
            if place == 0:
                self._hooks.first_token(job)
            said = text.say(token, last=stop or place + 1 == most)
            running.outputs.put_nowait(
                JobTokens(job=job.job, ids=struct.pack("<I", token), text=said)
            )
            if stop:
                return self._finished(running, FinishReason.STOP, place + 1)
            page = flow.page
            memory.write(job.job, page, flow.push(token))
        return self._finished(running, FinishReason.LENGTH, most)

    async def _receive(self, running: _Running, prompt: int) -> None:
        job = running.job
        if job.source is None or self._end is None:
            raise _Stopped(ErrorCode.INTERNAL, "there is no source")
        fetch = self._plane.fetch(
            self._end,
            job.source.incarnation,
            job.room,
            prompt,
            land=lambda place, content: self.memory.write(job.job, place, content),
            wake=running.wake.set,
        )
        try:
            while fetch.state is End.OPEN:
                _check(running)
                running.wake.clear()
                await running.wake.wait()
        except _Stopped:
            self._plane.abort_fetch(fetch)
            raise
        if fetch.state is End.FAILED:
            raise _Stopped(ErrorCode.KV_TRANSFER_FAILED, fetch.failure)
        running.transfer = fetch.report

    async def _allocate(self, running: _Running, tokens: int) -> None:
        pages = -(-tokens // PAGE_TOKENS)
        if pages > self._settings.pages:
            raise _Stopped(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "too long for this engine")
        while not self.memory.allocate(running.job.job, pages):
            _check(running)
            await asyncio.sleep(0.05)

    def _finished(self, running: _Running, finish: FinishReason, tokens: int) -> JobFinished:
        return JobFinished(
            job=running.job.job,
            finish=finish,
            prompt_tokens=len(running.job.input_ids) // 4,
            completion_tokens=tokens,
            queue_s=max(0.0, running.begun - running.arrived),
            forward_s=self._loop.time() - running.begun,
            transfer=running.transfer,
        )


def _check(running: _Running) -> None:
    if running.aborted:
        raise _Stopped(ErrorCode.CANCELLED, "aborted")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
