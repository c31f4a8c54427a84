"""Builders for engine tests: options, jobs, and a way to gather what a job gave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from libs.engine.options import EngineKind, HostOptions
from libs.engine.script.answer import reference
from libs.engine.script.settings import ScriptOptions
from libs.engine.scripted import model_of, vocabulary_of
from proto.host import Job, JobFailed, JobFinished, JobKind, JobOutput, JobTokens
from proto.ids import Incarnation, JobId, RequestId, Room, job_id
from proto.kv import PeerAddress
from proto.sampling import SamplingParams
from proto.workers import Role

__all__ = ["Answer", "collect", "expected", "host_options", "make_job", "prompt_of"]


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


async def collect(outputs: AsyncIterator[JobOutput]) -> Answer:
    """Run a job to its end."""
    ids: list[int] = []
    text = ""
    chunks = 0
    async for output in outputs:
        if isinstance(output, JobTokens):
            ids += np.frombuffer(output.ids, dtype="<u4").tolist()
            text += output.text
            chunks += 1
        else:
            return Answer(ids, text, chunks, output)
    raise AssertionError("the job ended without a final output")
