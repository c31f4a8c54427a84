"""PD-07 with real engines: `make reuse-sglang`."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from libs.models import resolve
from ops.bench.judge.pair import token_ids
from ops.bench.rig import Rig, greedy, job_for, new_job, new_room_id, rig
from proto.host import JobFailed, JobKind
from proto.workers import Role

pytestmark = [
    pytest.mark.integration,
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("sglang"),
]

ROUNDS = 200
LENGTH, TOKENS = 800, 8
POOL = 2000
"""KV tokens: two requests fit, a third one waits for the pages of one of them."""


async def abort_in_transfer(engines: Rig, seed: int, after_s: float) -> bool:
    """Run a request, abort it on both sides, and return whether its transfer had begun."""
    ids, job, room = token_ids(LENGTH, seed), new_job(), new_room_id()
    peer = engines.ready[Role.PREFILL].address
    ends = asyncio.gather(
        engines.end_of(Role.DECODE, job_for(JobKind.DECODE, ids, greedy(TOKENS), job, room, peer)),
        engines.end_of(Role.PREFILL, job_for(JobKind.PREFILL, ids, greedy(TOKENS), job, room)),
    )
    await asyncio.sleep(after_s)
    await asyncio.gather(
        *(engines.engines[role].abort(job) for role in (Role.DECODE, Role.PREFILL))
    )
    end, _ = await ends
    moved = end.transfer if isinstance(end, JobFailed) else None
    return moved is not None and 0 < moved.moved_bytes < moved.expected_bytes


async def test_pages_are_used_again_at_once(tmp_path: Path) -> None:
    """PD-07: 200 rounds of SGLang: abort in mid-transfer, then other prompts in the same pages."""
    model = resolve("tiny", tmp_path / "models", lambda _text: None)
    dice = random.Random(7)
    options = {
        "page_size": 16,
        "kv_tokens": POOL,
        "chunk_bytes": 32 << 10,
        "credits": 2,
        "checksum_every": 1,
        "engine_args": {"chunked_prefill_size": 128},
    }
    (tmp_path / "logs").mkdir()
    caught = 0
    async with rig((Role.PREFILL, Role.DECODE), model, tmp_path / "logs", **options) as engines:
        prompts = [token_ids(LENGTH, seed) for seed in range(100, 108)]
        right = [(await engines.split(ids, greedy(TOKENS))).ids for ids in prompts]
        assert all(len(ids) == TOKENS for ids in right)
        for number in range(ROUNDS):
            doomed = asyncio.ensure_future(
                abort_in_transfer(engines, 1000 + number, 0.01 + dice.random() * 0.15)
            )
            place = number % len(prompts)
            other = (place + 1) % len(prompts)
            caught += await doomed
            answers = await asyncio.gather(
                *(engines.split(prompts[n], greedy(TOKENS)) for n in (place, other))
            )
            for n, answer in zip((place, other), answers, strict=True):
                assert answer.failure == "", (number, answer.failure)
                assert answer.ids == right[n], number
    print(f"{caught} of {ROUNDS} were aborted between two chunks")
    assert caught > ROUNDS // 10
