"""Engines under measurement: real hosts, driven without services, and their CPU time."""

from __future__ import annotations

import array
import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.clock import SystemClock
from libs.engine.options import EngineKind, HostOptions
from libs.engine.process import HostedEngine
from libs.lifecycle.tasks import Tasks
from libs.lifecycle.turns import ask_for_short_turns
from libs.models import ModelFolder
from proto.host import EngineReady, Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.ids import (
    Incarnation,
    JobId,
    Room,
    job_id,
    new_incarnation,
    new_request_id,
    new_room,
)
from proto.kv import PeerAddress
from proto.sampling import SamplingParams
from proto.workers import Role

__all__ = [
    "Answer",
    "Rig",
    "cpu_seconds",
    "greedy",
    "job_for",
    "new_job",
    "new_room_id",
    "options_for",
    "rig",
]

_ENTROPY = secrets.SystemRandom()
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Answer:
    """What came of one request."""

    ids: list[int] = field(default_factory=list[int])
    first_s: float = 0.0
    """From the request until its first token."""
    total_s: float = 0.0
    prefill: JobFinished | JobFailed | None = None
    last: JobFinished | JobFailed | None = None

    @property
    def failure(self) -> str:
        """Why it failed; empty if it did not."""
        for end in (self.last, self.prefill):
            if isinstance(end, JobFailed):
                return f"{end.code}: {end.detail}"
        return ""


@dataclass(slots=True)
class Rig:
    """Engines that are ready, by role."""

    engines: dict[Role, HostedEngine]
    ready: dict[Role, EngineReady]
    start_s: float

    async def aggregated(self, ids: Sequence[int], sampling: SamplingParams) -> Answer:
        """Answer a prompt with the aggregated engine."""
        answer = Answer()
        await self._collect(Role.AGGREGATED, job_for(JobKind.AGGREGATED, ids, sampling), answer)
        return answer

    async def split(
        self, ids: Sequence[int], sampling: SamplingParams, *, source: PeerAddress | None = None
    ) -> Answer:
        """Answer a prompt with prefill and decode, both told at once, as a gateway does."""
        answer = Answer()
        job, room = new_job(), new_room_id()
        peer = source or self.ready[Role.PREFILL].address
        asker = self.engines[Role.DECODE].incarnation
        prefill = job_for(JobKind.PREFILL, ids, sampling, job, room, asker=asker)
        decode = job_for(JobKind.DECODE, ids, sampling, job, room, peer)
        _, answer.prefill = await asyncio.gather(
            self._collect(Role.DECODE, decode, answer), self.end_of(Role.PREFILL, prefill)
        )
        return answer

    async def end_of(self, role: Role, job: Job) -> JobFinished | JobFailed | None:
        """Run a job and return how it ended."""
        end = None
        async for output in self.engines[role].run(job):
            if not isinstance(output, JobTokens):
                end = output
        return end

    def pids(self, *roles: Role) -> tuple[int, ...]:
        """Return the processes of engines."""
        return tuple(pid for role in roles for pid in self.ready[role].pids)

    async def holds_nothing(self, *roles: Role, within_s: float = 2.0) -> bool:
        """Return whether engines hold no KV, no request and no room within a time."""
        try:
            async with asyncio.timeout(within_s):
                while any(  # noqa: ASYNC110 - the load is told by nobody
                    load.kv_used_tokens or load.running or load.waiting or load.open_rooms
                    for load in (self.engines[role].load() for role in roles)
                ):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return False
        return True

    async def _collect(self, role: Role, job: Job, answer: Answer) -> None:
        begin = time.perf_counter()
        async for output in self.engines[role].run(job):
            if isinstance(output, JobTokens):
                answer.first_s = answer.first_s or time.perf_counter() - begin
                answer.ids.extend(array.array("I", output.ids))
            else:
                answer.last = output
        answer.total_s = time.perf_counter() - begin


def options_for(role: Role, model: ModelFolder, logs: Path, **more: Any) -> HostOptions:
    """Return the options of one SGLang engine."""
    return HostOptions(
        kind=EngineKind.SGLANG,
        role=role,
        incarnation=new_incarnation(_ENTROPY),
        served_model=model.name,
        model_path=str(model.path),
        log_path=str(logs / f"{role}.log"),
        **more,
    )


@asynccontextmanager
async def rig(
    roles: Sequence[Role], model: ModelFolder, logs: Path, **more: Any
) -> AsyncGenerator[Rig]:
    """Start one engine a role, all at once; stop them on leaving.

    Raises:
        EngineDead: one of them did not start.
    """
    begin = time.perf_counter()
    # As the services do.
    ask_for_short_turns([os.getpid()])
    async with Tasks() as tasks:
        engines = {
            role: HostedEngine(
                options_for(role, model, logs, **more),
                SystemClock(),
                tasks,
                on_progress=lambda _text: None,
            )
            for role in roles
        }
        try:
            ready = await asyncio.gather(*(engine.start() for engine in engines.values()))
            yield Rig(engines, dict(zip(roles, ready, strict=True)), time.perf_counter() - begin)
        finally:
            await asyncio.gather(*(engine.stop() for engine in engines.values()))


def greedy(tokens: int) -> SamplingParams:
    """Return sampling that always gives the same `tokens` tokens."""
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


def new_job() -> JobId:
    """Return a job id that was never used."""
    return job_id(new_request_id(time.time_ns() // 1_000_000, _ENTROPY), 0)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time that processes have used since they began; the dead count nothing."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            continue
        fields = text.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def new_room_id() -> Room:
    """Return a room that was never used."""
    return new_room(_ENTROPY)


def job_for(  # noqa: PLR0913, PLR0917 - one argument a field
    kind: JobKind,
    ids: Sequence[int],
    sampling: SamplingParams,
    job: JobId | None = None,
    room: Room | None = None,
    source: PeerAddress | None = None,
    asker: Incarnation | None = None,
) -> Job:
    """Return a job; ids that are not given are new."""
    return Job(
        job=job or new_job(),
        kind=kind,
        input_ids=array.array("I", ids).tobytes(),
        sampling=sampling,
        room=room or new_room_id(),
        source=source,
        asker=asker,
    )
