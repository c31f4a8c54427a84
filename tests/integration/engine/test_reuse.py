"""PD-07: pages of a request that was aborted in mid-transfer are used again at once, many times."""

from __future__ import annotations

import asyncio
import random

import pytest

from libs.engine.script.settings import Action, Fault, Phase, Profile, ScriptOptions
from proto.errors import ErrorCode
from proto.host import JobFailed
from proto.kv import Lane
from proto.workers import Role
from tests.integration.engine.test_hosts import hosts, request, until
from tests.support.engines import expected, host_options, make_job, prompt_of

pytestmark = pytest.mark.integration

LENGTH, TOKENS = 400, 8
POOL = 2 * (LENGTH + TOKENS + 8)
"""Room for two requests and not for three."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("lane", "rounds"), [(Lane.SYSV, 200), (Lane.TCP, 60)])
async def test_pages_are_used_again_at_once(lane: Lane, rounds: int) -> None:
    """PD-07: many rounds: two are aborted while chunks move; two others get their pages.

    The answer of a scripted engine reads every byte of its KV, so that one late write would show.
    """
    dice = random.Random(7)
    chunks = Profile(chunk_tokens=40)
    slow = Fault(when=Phase.TRANSFER, action=Action.SLOW, seconds=0.003)
    prefill = host_options(
        Role.PREFILL,
        name=1,
        lanes=(lane,),
        chunk_bytes=4096,
        kv_tokens=8 * POOL,
        script=ScriptOptions(profile=chunks, faults=(slow,)),
    )
    decode = host_options(
        Role.DECODE, name=2, lanes=(lane,), kv_tokens=POOL, script=ScriptOptions(profile=chunks)
    )
    caught = 0
    async with hosts(prefill, decode) as ((p, d), (ready, _)):
        for number in range(1, 4 * rounds, 4):
            doomed = [
                asyncio.gather(*request(p, d, ready, n, prompt_of(n, LENGTH), max_tokens=TOKENS))
                for n in (number, number + 1)
            ]
            await asyncio.sleep(dice.random() * 0.02)
            jobs = [make_job(n, []).job for n in (number, number + 1)]
            await asyncio.gather(*(engine.abort(job) for job in jobs for engine in (d, p)))
            fresh = [
                asyncio.gather(*request(p, d, ready, n, prompt_of(n, LENGTH), max_tokens=TOKENS))
                for n in (number + 2, number + 3)
            ]
            for place, work in enumerate(fresh, 2):
                answer, _ = await work
                ids = prompt_of(number + place, LENGTH)
                assert answer.ids == expected(decode, ids, TOKENS), (number, answer.end)
            for answers in await asyncio.gather(*doomed):
                end = answers[0].end
                if isinstance(end, JobFailed):
                    assert end.code is ErrorCode.CANCELLED
                    moved = end.transfer
                    caught += moved is not None and 0 < moved.moved_bytes < moved.expected_bytes
        await until(lambda: not d.load().kv_used_tokens, 2)
        assert caught > rounds // 10
        print(f"{lane}: {caught} of {2 * rounds} were aborted between two chunks")
