"""What a real engine, or a pair of them, says to one prompt."""

from __future__ import annotations

import array
import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ops.bench.rig import Rig, job_for, new_job, new_room_id
from proto.host import JobFailed, JobFinished, JobKind, JobOutput, JobTokens
from proto.output import TokenLogprob
from proto.sampling import SamplingParams
from proto.workers import Role

__all__ = ["Said", "drawn"]


def drawn(tokens: int, **more: Any) -> SamplingParams:
    """Return sampling of the likeliest tokens."""
    return SamplingParams(max_tokens=tokens, **({"temperature": 0.0} | more))


@dataclass(slots=True)
class Said:
    """One answer with all that came beside its text."""

    ids: list[int] = field(default_factory=list[int])
    text: str = ""
    reasoning: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    calls: list[list[str]] = field(default_factory=list[list[str]])
    """Name and arguments of each."""
    end: JobFinished | None = None
    prefill: JobFinished | JobFailed | None = None

    @classmethod
    async def by_one(
        cls, engines: Rig, ids: Sequence[int], sampling: SamplingParams, **more: Any
    ) -> Said:
        """Ask the aggregated engine."""
        job = msgspec.structs.replace(job_for(JobKind.AGGREGATED, ids, sampling), **more)
        said = cls()
        await said._collect(engines.engines[Role.AGGREGATED].run(job))
        return said

    @classmethod
    async def by_the_pair(
        cls, engines: Rig, ids: Sequence[int], sampling: SamplingParams, **more: Any
    ) -> Said:
        """Ask prefill and decode, both at once."""
        job, room, said = new_job(), new_room_id(), cls()
        asker = engines.engines[Role.DECODE].incarnation
        source = engines.ready[Role.PREFILL].address
        prefill = job_for(JobKind.PREFILL, ids, sampling, job, room, asker=asker)
        decode = job_for(JobKind.DECODE, ids, sampling, job, room, source)
        salt = {name: value for name, value in more.items() if name == "cache_salt"}
        said.prefill, _ = await asyncio.gather(
            engines.end_of(Role.PREFILL, msgspec.structs.replace(prefill, **salt)),
            said._collect(
                engines.engines[Role.DECODE].run(msgspec.structs.replace(decode, **more))
            ),
        )
        return said

    async def _collect(self, outputs: AsyncIterator[JobOutput]) -> None:
        async for output in outputs:
            assert not isinstance(output, JobFailed), f"{output.code}: {output.detail}"
            self.text += output.text
            if isinstance(output, JobTokens):
                self.ids += array.array("I", output.ids)
            else:
                self.end = output
            if output.details is not None:
                self.reasoning += output.details.reasoning
                self.logprobs += output.details.logprobs
                for delta in output.details.calls:
                    if delta.index == len(self.calls):
                        self.calls.append([delta.name, ""])
                    self.calls[delta.index][1] += delta.arguments
