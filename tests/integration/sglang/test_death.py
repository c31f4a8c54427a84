"""What the death of SGLang's processes does to the other engine and to the service above."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.engine import EngineDead
from libs.models import resolve
from ops.bench.prompts import prompt
from ops.bench.rig import Rig, greedy, job_for, new_job, new_room_id, rig
from proto.errors import ErrorCode
from proto.host import JobFailed, JobKind
from proto.workers import Role

pytestmark = [
    pytest.mark.integration,
    pytest.mark.sglang,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("sglang"),
]

P, D = Role.PREFILL, Role.DECODE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the tiny model."""
    return resolve("tiny", tmp_path / "models", lambda _text: None).path


@pytest.fixture
async def pair(folder: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    """Return a pair with prompts forced into small chunks, so that a long one takes seconds."""
    model = resolve(str(folder), tmp_path, lambda _text: None)
    arguments = {"chunked_prefill_size": 128}
    async with rig((P, D), model, tmp_path, engine_args=arguments) as ready:
        yield ready


def _alive(pids: tuple[int, ...]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/cwd").exists()]


async def test_a_death_is_an_event_and_frees_the_other_side(pair: Rig, folder: Path):
    """A killed prefill fails its request on decode; a killed scheduler ends its engine at once."""
    assert (await pair.split(prompt(folder, 100, 1), greedy(2))).failure == ""
    ids, job, room = prompt(folder, 7000, 2), new_job(), new_room_id()
    source = pair.ready[P].address
    prefill = asyncio.create_task(
        pair.end_of(P, job_for(JobKind.PREFILL, ids, greedy(2), job, room))
    )
    decode = asyncio.create_task(
        pair.end_of(D, job_for(JobKind.DECODE, ids, greedy(2), job, room, source))
    )
    async with asyncio.timeout(5):
        while pair.engines[P].load().kv_used_tokens == 0:
            await asyncio.sleep(0.01)
    os.killpg(os.getpgid(pair.ready[P].pids[0]), signal.SIGKILL)
    with pytest.raises(EngineDead):
        await asyncio.wait_for(prefill, 2)
    end = await asyncio.wait_for(decode, 5)
    assert isinstance(end, JobFailed)
    assert end.code is ErrorCode.PREFILL_LOST
    async with asyncio.timeout(2):
        while pair.engines[D].load().kv_used_tokens:
            await asyncio.sleep(0.01)

    waiting = asyncio.create_task(
        pair.end_of(D, job_for(JobKind.DECODE, ids, greedy(2), source=source))
    )
    end = await asyncio.wait_for(waiting, 5)
    assert isinstance(end, JobFailed)
    assert end.code is ErrorCode.PREFILL_LOST

    scheduler = pair.ready[D].pids[1]
    os.kill(scheduler, signal.SIGKILL)
    reason = await asyncio.wait_for(pair.engines[D].wait_dead(), 2)
    assert str(scheduler) in reason
    with pytest.raises(EngineDead):
        pair.engines[D].run(job_for(JobKind.DECODE, ids, greedy(2), source=source))
    await pair.engines[D].stop()
    assert _alive(pair.ready[D].pids) == []
