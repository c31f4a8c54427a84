"""A prefill and a decode engine of two tensor-parallel ranks each, beside one aggregated engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from libs.models import ModelFolder, resolve
from ops.bench.parity import CASES, compare_on
from ops.bench.prompts import prompt
from ops.bench.rig import Rig, greedy, job_for, new_job, new_room_id, rig
from proto.errors import ErrorCode
from proto.host import JobFailed, JobFinished, JobKind
from proto.workers import Role

pytestmark = [
    pytest.mark.integration,
    pytest.mark.sglang,
    pytest.mark.timeout(420),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("sglang"),
]

CASE = next(case for case in CASES if case.model == "tiny" and case.page_size == 16)
PAIR = (Role.PREFILL, Role.DECODE)
RANKS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Return the tiny model, made from the packaged weights."""
    return resolve("tiny", tmp_path_factory.mktemp("models"), lambda _text: None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(
    model: ModelFolder, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rig]:
    """Return the engines; prompts come in chunks of at most 128 tokens."""
    async with rig(
        (*PAIR, Role.AGGREGATED),
        model,
        tmp_path_factory.mktemp("logs"),
        page_size=CASE.page_size,
        engine_args={"chunked_prefill_size": CASE.chunk, "tp_size": RANKS},
    ) as ready:
        yield ready


async def test_ranks_answer_as_the_aggregated_engine(engines: Rig, model: ModelFolder) -> None:
    """20 prompts one by one and 20 at once give equal tokens, and every rank's bytes moved."""
    result = await compare_on(engines, CASE, model)
    assert result.problems == ()
    assert (result.sequential, result.concurrent) == (20, 20)
    assert result.moved == result.expected
    assert await engines.holds_nothing(*PAIR)


async def test_both_ranks_have_sent_their_part(engines: Rig, model: ModelFolder) -> None:
    """The card tells the heads of one rank; a report has the bytes and chunks of both."""
    answer = await engines.split(prompt(model.path, 1000, 51), greedy(4))
    assert answer.failure == ""
    for role, end in ((Role.PREFILL, answer.prefill), (Role.DECODE, answer.last)):
        ready = engines.ready[role]
        assert ready.card.tp == RANKS
        assert ready.address is not None
        assert len(ready.address.ranks) == RANKS - 1
        assert isinstance(end, JobFinished)
        assert end.transfer is not None
        pages = -(-1000 // CASE.page_size)
        kv = pages * CASE.page_size * ready.card.kv_bytes_per_token
        assert end.transfer.moved_bytes == end.transfer.expected_bytes > RANKS * kv
        assert end.transfer.chunks % RANKS == 0


@pytest.mark.parametrize("role", PAIR)
async def test_an_abort_ends_all_ranks(engines: Rig, model: ModelFolder, role: Role) -> None:
    """Whichever side gives up in mid-prompt, both end typed, hold nothing, and go on."""
    # A prompt of its own: prefill would have the other one in its cache.
    ids = prompt(model.path, 3000, 7 + PAIR.index(role))
    job, room = new_job(), new_room_id()
    peer = engines.ready[Role.PREFILL].address
    asker = engines.engines[Role.DECODE].incarnation
    prefill = job_for(JobKind.PREFILL, ids, greedy(8), job, room, asker=asker)
    decode = job_for(JobKind.DECODE, ids, greedy(8), job, room, peer)
    ends = asyncio.gather(
        engines.end_of(Role.PREFILL, prefill), engines.end_of(Role.DECODE, decode)
    )
    await asyncio.sleep(0.03)
    await engines.engines[role].abort(job)
    async with asyncio.timeout(20):
        both = dict(zip(PAIR, await ends, strict=True))
    aborted, other = both[role], both[PAIR[1 - PAIR.index(role)]]
    assert isinstance(aborted, JobFailed)
    assert aborted.code is ErrorCode.CANCELLED
    assert isinstance(other, JobFailed)
    assert await engines.holds_nothing(*PAIR)
    after = prompt(model.path, 200, 8)
    assert (await engines.split(after, greedy(8))).ids == (
        await engines.aggregated(after, greedy(8))
    ).ids
