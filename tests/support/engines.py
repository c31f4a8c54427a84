"""Builders for engine tests: options, jobs, scripted engines and pairs, what a job gave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np

from libs.clock import SystemClock
from libs.engine.options import EngineKind, HostOptions
from libs.engine.script.answer import reference
from libs.engine.script.plane import pools_of
from libs.engine.script.settings import ScriptOptions
from libs.engine.scripted import ScriptedEngine, model_of, vocabulary_of
from proto.host import Job, JobFailed, JobFinished, JobKind, JobOutput, JobTokens
from proto.ids import Incarnation, JobId, RequestId, Room, job_id
from proto.kv import PeerAddress
from proto.output import Details, Parsing
from proto.sampling import SamplingParams
from proto.workers import Role
from tests.support.plane import Exchange, MemoryPlane

__all__ = [
    "Answer",
    "Crashed",
    "both_sides",
    "collect",
    "crash",
    "empty",
    "engine_of",
    "expected",
    "host_options",
    "make_job",
    "pair",
    "prompt_of",
    "until",
]


def host_options(
    role: Role = Role.AGGREGATED, *, name: int = 1, script: ScriptOptions | None = None, **changes
) -> HostOptions:
    """Return options of a small scripted engine."""
    values = {
        "kind": EngineKind.SCRIPTED,
        "role": role,
        "incarnation": Incarnation(f"{name:016x}"),
        "served_model": "scripted",
        "page_size": 4,
        "kv_tokens": 4096,
        "slots": 8,
        "script": script if script is not None else ScriptOptions(),
    }
    return HostOptions(**(values | changes))


def make_job(
    number: int,
    ids: Sequence[int],
    *,
    kind: JobKind = JobKind.AGGREGATED,
    max_tokens: int = 16,
    source: PeerAddress | None = None,
    attempt: int = 1,
    ignore_eos: bool = True,
    parsing: Parsing | None = None,
    **sampling,
) -> Job:
    """Return a job whose id and room follow from `number`."""
    return Job(
        job=JobId(job_id(RequestId(f"{number:026d}"), attempt)),
        kind=kind,
        input_ids=np.asarray(ids, dtype="<u4").tobytes(),
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, **sampling),
        room=Room(number * 100 + attempt),
        source=source,
        parsing=parsing,
    )


def prompt_of(seed: int, length: int) -> list[int]:
    """Return a repeatable prompt."""
    return np.random.default_rng(seed).integers(1, 30000, size=length).tolist()


def expected(
    options: HostOptions, ids: Sequence[int], count: int, *, ignore_eos: bool = True
) -> list[int]:
    """Return the right answer of an engine with these options."""
    model = model_of(options, vocabulary_of(options))
    return reference(model, ids, count, ignore_eos=ignore_eos)


@dataclass
class Answer:
    """What a job gave."""

    ids: list[int]
    text: str
    chunks: int
    end: JobFinished | JobFailed
    details: list[Details] = field(default_factory=list)


async def collect(outputs: AsyncIterator[JobOutput]) -> Answer:
    """Run a job to its end."""
    ids: list[int] = []
    text = ""
    chunks = 0
    details: list[Details] = []
    async for output in outputs:
        if isinstance(output, JobTokens):
            ids += np.frombuffer(output.ids, dtype="<u4").tolist()
            text += output.text
            chunks += 1
        elif isinstance(output, JobFinished):
            text += output.text
        if isinstance(output, JobTokens | JobFinished) and output.details is not None:
            details.append(output.details)
        if not isinstance(output, JobTokens):
            return Answer(ids, text, chunks, output, details)
    raise AssertionError("the job ended without a final output")


class Crashed(Exception):
    """Stands for the death of the process."""


def crash():
    raise Crashed


@asynccontextmanager
async def engine_of(options, exchange=None):
    """A started engine that must be empty at the end."""

    def open_plane(opts, memory, card, wake):
        return MemoryPlane(exchange, opts.incarnation, *pools_of(memory), wake)

    engine = ScriptedEngine(options, SystemClock(), open_plane=open_plane, crash=crash)
    ready = await engine.start()
    try:
        yield engine, ready
    finally:
        await engine.stop()


@asynccontextmanager
async def pair(exchange=None, *, prefill=None, decode=None, **both):
    """A prefill and a decode engine that share an exchange."""
    exchange = exchange if exchange is not None else Exchange()
    first = host_options(Role.PREFILL, name=1, **(both | (prefill or {})))
    second = host_options(Role.DECODE, name=2, **(both | (decode or {})))
    async with engine_of(first, exchange) as (p, ready), engine_of(second, exchange) as (d, _):
        yield p, d, ready.address, exchange


def both_sides(p, d, address, number, ids, **kwargs):
    """Start a request on both engines; return their outputs as awaitables."""
    source = make_job(number, ids, kind=JobKind.PREFILL, **kwargs)
    target = make_job(number, ids, kind=JobKind.DECODE, source=address, **kwargs)
    return collect(p.run(source)), collect(d.run(target))


def empty(engine):
    """Whether an engine holds nothing."""
    load = engine.load()
    return (load.running, load.waiting, load.kv_used_tokens, load.open_rooms) == (0, 0, 0, 0)


async def until(condition):
    """Wait for a state."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)
