"""One prefill, one decode and one aggregated SGLang engine, started once for the module.

What a crash kills is started again. The crashes cost a restart each, so all but one of each side
are slow; `python -m ops.bench.judge` prints the whole table.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from libs.engine.process import HostedEngine
from libs.models import ModelFolder, resolve
from ops.bench.judge import (
    CELLS,
    Action,
    Pair,
    Phase,
    Subject,
    act,
    cancel_many,
    half_move,
    judge_cell,
    pair,
)
from ops.bench.judge.pair import token_ids
from ops.bench.parity import CASES, compare_on
from ops.bench.prompts import prompt
from ops.bench.rig import Rig, greedy, job_for, new_job, new_room_id
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import EngineReady, JobFailed, JobFinished, JobKind
from proto.kv import Lane, PeerAddress, TransferReport
from proto.output import Parsing
from proto.sampling import Guide, GuideKind
from proto.workers import Role
from tests.support.said import Said, drawn

pytestmark = [
    pytest.mark.integration,
    pytest.mark.sglang,
    pytest.mark.timeout(420),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("sglang"),
]

CASE = next(case for case in CASES if case.model == "tiny" and case.page_size == 16)
PAIR = (Role.PREFILL, Role.DECODE)
QUICK_CRASHES = ((Phase.PREFILLING, Action.KILL_PREFILL),)
KEPT_TOKENS = 2560
PAGE = CASE.page_size


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Return the tiny model, made from the packaged weights."""
    return resolve("tiny", tmp_path_factory.mktemp("models"), lambda _text: None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judged(
    model: ModelFolder, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """Return the three engines; prompts come in chunks of at most 128 tokens."""
    async with pair(model, tmp_path_factory.mktemp("logs"), Role.AGGREGATED) as ready:
        yield ready


@pytest.fixture
def engines(judged: Pair) -> Rig:
    """Return the engines in their present lives."""
    return judged.rig


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keeper(judged: Pair) -> AsyncIterator[tuple[HostedEngine, EngineReady]]:
    """Return a second decode engine: it keeps prefixes, and its memory is soon full of them."""
    engine = judged.engine(Role.DECODE, prefix_cache=True, kv_tokens=KEPT_TOKENS)
    try:
        yield engine, await engine.start()
    finally:
        await engine.stop()


@pytest.fixture
def keeping(judged: Pair, keeper: tuple[HostedEngine, EngineReady]) -> Pair:
    """Return the pair of prefill and the decode engine that keeps prefixes."""
    return judged.with_engine(Role.DECODE, *keeper)


async def test_the_pair_answers_as_the_aggregated_engine(engines: Rig, model: ModelFolder):
    """20 prompts one by one and 20 at once give equal tokens, and every expected byte moved."""
    result = await compare_on(engines, CASE, model)
    assert result.problems == ()
    assert (result.sequential, result.concurrent) == (20, 20)
    assert result.chunks >= 3000 // CASE.chunk
    assert result.moved == result.expected
    assert await engines.holds_nothing(*PAIR)


async def test_the_cards_of_all_three_are_equal(engines: Rig):
    """What may exchange KV, and the baseline, describe the same model and memory."""
    cards = [ready.card for ready in engines.ready.values()]
    assert {card.digest for card in cards} == {cards[0].digest}
    assert cards[0].kv_dtype == "float32"
    assert cards[0].page_size == CASE.page_size
    assert cards[0].engine_version == "0.5.23"


async def test_the_transfer_is_reported(engines: Rig, model: ModelFolder):
    """Lane, bytes, tokens and times of one request are known on both sides."""
    ids = prompt(model.path, 1000, 51)
    answer = await engines.split(ids, greedy(4))
    assert isinstance(answer.prefill, JobFinished)
    assert isinstance(answer.last, JobFinished)
    for end in (answer.prefill, answer.last):
        assert end.transfer is not None
        assert end.transfer.lane is Lane.SYSV
        assert end.transfer.moved_bytes == end.transfer.expected_bytes
        assert end.transfer.tokens == 1000
    assert answer.prefill.forward_s > 0
    assert 0 < answer.last.wait_kv_s < answer.total_s
    assert answer.last.completion_tokens == 4


async def test_log_probabilities_of_the_pair_are_those_of_one_engine(
    engines: Rig, model: ModelFolder
):
    """Each token has one entry with three others, and the first one comes from prefill."""
    ids, wanted = prompt(model.path, 150, 81), drawn(6, logprobs=3)
    split = await Said.by_the_pair(engines, ids, wanted)
    alone = await Said.by_one(engines, ids, wanted)
    assert [entry.token for entry in split.logprobs] == split.ids == alone.ids
    assert [len(entry.top) for entry in split.logprobs] == [3] * 6
    for ours, theirs in zip(split.logprobs, alone.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert ours.top[0] == (ours.token, ours.logprob)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
    without = await Said.by_the_pair(engines, ids, drawn(6))
    assert (without.ids, without.logprobs) == (split.ids, [])


@pytest.mark.parametrize(
    ("guide", "right"),
    [
        (Guide(kind=GuideKind.REGEX, text="(yes|no) [0-9]{3}"), r"(yes|no) [0-9]{3}"),
        (Guide(kind=GuideKind.EBNF, text='root ::= "he" "llo"'), "hello"),
        (
            Guide(
                kind=GuideKind.JSON_SCHEMA,
                text='{"type": "object", "properties": {"n": {"type": "integer"}, "ok": '
                '{"type": "boolean"}}, "required": ["n", "ok"], "additionalProperties": false}',
            ),
            r'\{\s*"n"\s*:\s*-?[0-9]+\s*,\s*"ok"\s*:\s*(true|false)\s*\}',
        ),
    ],
)
async def test_guided_answers_match(engines: Rig, model: ModelFolder, guide: Guide, right: str):
    """The pair's answer matches from its first token, which prefill drew, to its end."""
    ids = prompt(model.path, 60, 82)
    said = await Said.by_the_pair(engines, ids, drawn(120, guide=guide))
    assert re.fullmatch(right, said.text), said.text
    assert said.end is not None
    assert said.end.finish is FinishReason.STOP
    assert said.text == (await Said.by_one(engines, ids, drawn(120, guide=guide))).text


@pytest.mark.parametrize(
    "guide",
    [
        Guide(kind=GuideKind.REGEX, text="(["),
        Guide(kind=GuideKind.JSON_SCHEMA, text='{"type": "nosuch"}'),
        Guide(kind=GuideKind.JSON_SCHEMA, text='{"type": "string", "pattern": "(["}'),
        Guide(kind=GuideKind.JSON_SCHEMA, text='{"$ref": "#"}'),
        Guide(kind=GuideKind.EBNF, text="root ::= nosuch"),
    ],
)
async def test_a_broken_guide_is_the_end_of_its_request_only(
    engines: Rig, model: ModelFolder, guide: Guide
):
    """Each side refuses it by itself with a reason, holds nothing, and serves the next one."""
    ids = prompt(model.path, 60, 83)
    async with asyncio.timeout(10):
        answer = await engines.split(ids, drawn(8, guide=guide))
    for end in (answer.prefill, answer.last):
        assert isinstance(end, JobFailed)
        assert end.code is ErrorCode.INVALID_VALUE
    assert await engines.holds_nothing(*PAIR)
    assert (await engines.split(ids, greedy(2))).failure == ""


async def test_a_cancel_does_not_wait_for_the_check_of_a_guide(engines: Rig, model: ModelFolder):
    """A job whose guide is still being looked at ends as cancelled, and the engine serves on."""
    guide = Guide(kind=GuideKind.REGEX, text="[^b]?" * 50)
    engine = engines.engines[Role.AGGREGATED]
    job = job_for(JobKind.AGGREGATED, prompt(model.path, 60, 88), drawn(8, guide=guide))
    running = asyncio.create_task(engines.end_of(Role.AGGREGATED, job))
    await asyncio.sleep(0.05)
    await engine.abort(job.job)
    async with asyncio.timeout(10):
        end = await running
    assert isinstance(end, JobFailed)
    assert end.code is ErrorCode.CANCELLED
    assert (await engines.aggregated(prompt(model.path, 60, 88), greedy(2))).failure == ""


async def test_stop_strings_end_the_text_before_them(engines: Rig, model: ModelFolder):
    """A stop string in the first token, and one that ends in a later token, never show."""
    ids = prompt(model.path, 60, 84)
    whole = (await Said.by_the_pair(engines, ids, drawn(10))).text
    for stop in (whole[:2], whole[3:9]):
        said = await Said.by_the_pair(engines, ids, drawn(10, stop=(stop,)))
        assert said.text == whole[: whole.index(stop)]
        assert said.end is not None
        assert said.end.finish is FinishReason.STOP


async def test_biases_and_least_lengths_hold_on_both_sides(engines: Rig, model: ModelFolder):
    """Forced, banned and stopping tokens are so for the first token, too."""
    ids, word = prompt(model.path, 60, 85), 11000
    free = await Said.by_the_pair(engines, ids, drawn(4))
    forced = await Said.by_the_pair(engines, ids, drawn(4, logit_bias=((word, 100.0),)))
    assert forced.ids == [word] * 4
    banned = await Said.by_the_pair(engines, ids, drawn(4, logit_bias=((free.ids[0], -100.0),)))
    assert banned.ids[0] != free.ids[0]
    ends = {"stop_token_ids": (free.ids[0],)}
    assert len((await Said.by_the_pair(engines, ids, drawn(4, **ends))).ids) == 1
    assert len((await Said.by_the_pair(engines, ids, drawn(4, min_tokens=4, **ends))).ids) == 4


async def test_a_salt_parts_the_prefix_cache(engines: Rig, model: ModelFolder):
    """A prompt is found in the cache again, but not by a request of another salt."""
    ids = prompt(model.path, 160, 86)
    found: list[int] = []
    for salt in ("", "", "a", "a", "b"):
        said = await Said.by_the_pair(engines, ids, drawn(2), cache_salt=salt)
        assert isinstance(said.prefill, JobFinished)
        found.append(said.prefill.cached_tokens)
    assert found == [0, found[1], 0, found[1], 0]
    assert found[1] >= 100


async def test_forced_calls_are_told_apart(engines: Rig, model: ModelFolder):
    """A guide makes an array of calls, and decode gives them as calls and not as text."""
    ids = prompt(model.path, 60, 87)
    guide = Guide(
        kind=GuideKind.JSON_SCHEMA,
        text='{"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "object", '
        '"properties": {"name": {"enum": ["get_time"]}, "parameters": {"type": "object", '
        '"properties": {"zone": {"type": "integer"}}, "required": ["zone"], '
        '"additionalProperties": false}}, "required": ["name", "parameters"], '
        '"additionalProperties": false}}',
    )
    parsing = Parsing(tools='[{"type": "function", "function": {"name": "get_time"}}]', forced=True)
    said = await Said.by_the_pair(engines, ids, drawn(200, guide=guide), parsing=parsing)
    assert said.text == ""
    assert said.end is not None
    assert said.end.finish is FinishReason.TOOL_CALLS
    assert [name for name, _ in said.calls] == ["get_time", "get_time"]
    for _, arguments in said.calls:
        assert isinstance(json.loads(arguments)["zone"], int)


async def test_the_way_between_the_engines_is_measured(engines: Rig):
    """Decode's scheduler process goes the way to prefill's, also while it has nothing to do."""
    source = engines.ready[Role.PREFILL].address
    assert source is not None
    for _ in range(2):
        found = await engines.engines[Role.DECODE].probe(source)
        assert found.code is None, found
        assert found.lane is not Lane.UNKNOWN
        assert [one.size_bytes for one in found.sizes] == [1 << 10, 64 << 10, 4 << 20]
        assert found.latency_s > 0


async def test_a_request_that_nobody_meets_ends_by_its_deadline(engines: Rig, model: ModelFolder):
    """Each side gives up after the plane's time, with a reason, and holds nothing."""
    ids, source = prompt(model.path, 200, 77), engines.ready[Role.PREFILL].address
    prefill, decode = await asyncio.gather(
        engines.end_of(Role.PREFILL, job_for(JobKind.PREFILL, ids, greedy(2))),
        engines.end_of(Role.DECODE, job_for(JobKind.DECODE, ids, greedy(2), source=source)),
    )
    assert isinstance(prefill, JobFailed)
    assert isinstance(decode, JobFailed)
    assert (prefill.code, decode.code) == (ErrorCode.DEADLINE, ErrorCode.DEADLINE)
    assert await engines.holds_nothing(*PAIR)


async def test_an_address_of_nobody_is_the_end_of_the_request_only(
    engines: Rig, model: ModelFolder
):
    """A prefill engine that does not exist is a lost prefill, and the next request is served."""
    nobody = PeerAddress(incarnation="0" * 16, host="nowhere", workers={})
    ids = prompt(model.path, 200, 78)
    end = await engines.end_of(Role.DECODE, job_for(JobKind.DECODE, ids, greedy(2), source=nobody))
    assert isinstance(end, JobFailed)
    assert end.code in (ErrorCode.PREFILL_LOST, ErrorCode.LANE_REFUSED)
    assert (await engines.split(ids, greedy(2))).failure == ""
    assert await engines.holds_nothing(*PAIR)


async def test_a_prompt_that_cannot_fit_is_refused(engines: Rig, model: ModelFolder):
    """Each engine refuses it at once, and goes on."""
    ids = prompt(model.path, 8300, 79)
    end = await engines.end_of(Role.AGGREGATED, job_for(JobKind.AGGREGATED, ids, greedy(2)))
    assert isinstance(end, JobFailed)
    assert end.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    assert (await engines.aggregated(ids[:50], greedy(2))).failure == ""


def _cell(phase: Phase, action: Action):
    quick = not action.kills or (phase, action) in QUICK_CRASHES
    marks = () if quick else (pytest.mark.slow,)
    return pytest.param(phase, action, id=f"{phase}, {action.label}", marks=marks)


@pytest.mark.parametrize(("phase", "action"), [_cell(*cell) for cell in CELLS])
async def test_survivors_hold_nothing_and_serve_on(judged: Pair, phase: Phase, action: Action):
    """Callers see the right end, KV and rooms are free within the bound, the next one is served."""
    outcome = await judge_cell(judged, phase, action)
    assert outcome.problems == []
    assert outcome.free_s is not None


async def test_cancels_at_random_moments_leak_nothing(judged: Pair):
    """After 20 cancels in any phase, several at once, no token of KV and no room is held."""
    found = await cancel_many(judged, 20, seed=3)
    assert found.problems == []
    assert found.count == 20
    assert (found.leaked, found.rooms) == (0, 0)


def _threads(pids: tuple[int, ...]) -> list[str]:
    return [
        path.read_text().strip()
        for pid in pids
        for path in Path(f"/proc/{pid}/task").glob("*/comm")
    ]


async def test_an_idle_scheduler_has_one_loop_of_gloo(engines: Rig) -> None:
    """SGLang's groups of one process share a thread, so that nine do not wake for nothing."""
    for role in (*PAIR, Role.AGGREGATED):
        assert _threads(engines.pids(role)).count("gloo_tcp_loop") == 1


# A decode engine that keeps prefixes


async def _moved(pair: Pair, ids: list[int], **more: str) -> tuple[list[int], TransferReport]:
    """Ask the pair; return its answer, and what both sides say of the transfer, which is the same.

    The answer is that of the aggregated engine.
    """
    said = await Said.by_the_pair(pair.rig, ids, drawn(24), **more)
    assert isinstance(said.prefill, JobFinished), said.prefill
    assert said.end is not None
    ours, theirs = said.end.transfer, said.prefill.transfer
    assert ours is not None
    assert theirs is not None
    for name in ("moved_bytes", "expected_bytes", "tokens", "held_tokens"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert said.ids == (await Said.by_one(pair.rig, ids, drawn(24))).ids
    return said.ids, ours


def _bytes_of(pair: Pair, report: TransferReport) -> int:
    """Return the bytes that the pages of a prompt have which decode did not hold."""
    rest = -(-report.tokens // PAGE) * PAGE - report.held_tokens
    return rest * pair.rig.ready[Role.DECODE].card.kv_bytes_per_token


async def test_of_a_prompt_that_decode_holds_in_part_only_the_rest_moves(keeping: Pair):
    """Prompts, longer ones, a second turn and a beginning: the right bytes and the right tokens.

    Pages of an answer, which decode has computed by itself, are held too; of a prompt that is held
    to its last token only the row of metadata moves; another salt holds nothing.
    """
    first, more, other = token_ids(900, 301), token_ids(300, 302), token_ids(100, 303)
    answer, whole = await _moved(keeping, first)
    row = whole.moved_bytes - _bytes_of(keeping, whole)
    assert (whole.held_tokens, whole.tokens) == (0, 900)
    assert 0 < row < 8192
    asks = (
        (first, 896),
        (first + more, 896),
        (first + answer + other, (900 + len(answer) - 1) // PAGE * PAGE),
        (first[:517] + other, 512),
        (first[: 32 * PAGE], 32 * PAGE),
        (first[:PAGE], PAGE),
        (first[: PAGE - 1], 0),
    )
    for ids, held in asks:
        _, report = await _moved(keeping, ids)
        assert (report.tokens, report.held_tokens) == (len(ids), held)
        assert report.expected_bytes == _bytes_of(keeping, report) + row
        assert report.moved_bytes == report.expected_bytes
    _, salted = await _moved(keeping, first, cache_salt="another")
    assert (salted.held_tokens, salted.moved_bytes) == (0, whole.moved_bytes)
    assert await keeping.rig.holds_nothing(*PAIR)


@pytest.mark.parametrize("action", [Action.ABORT_PREFILL, Action.ABORT_DECODE], ids=PAIR)
async def test_a_transfer_that_breaks_off_leaves_no_pages_in_the_cache(
    keeping: Pair, action: Action
):
    """Aborted by either side when some of the rest has moved, all of the rest moves anew.

    What was held before is held still, nothing else is, and the answer is the right one.
    """
    held, rest = token_ids(640, 401), token_ids(1000, len(action.label) + 410)
    await _moved(keeping, held)
    subject = Subject(keeping, new_job(), new_room_id(), held + rest, 8)
    await half_move(keeping, subject)
    await act(keeping, Phase.TRANSFERRING, action, [subject])
    moved: list[int] = []
    for end in (await subject.settle(10.0)).values():
        assert isinstance(end, JobFailed), end
        assert end.transfer is not None
        assert (end.transfer.held_tokens, end.transfer.tokens) == (640, 1640)
        assert end.transfer.moved_bytes < end.transfer.expected_bytes
        moved.append(end.transfer.moved_bytes)
    # Decode may hear of the end before it looks at what had come.
    assert max(moved) > 0
    assert await keeping.free_after(time.monotonic(), PAIR, 5.0) is not None
    _, report = await _moved(keeping, held + rest)
    assert report.held_tokens == 640
    assert report.moved_bytes == report.expected_bytes
    assert await keeping.rig.holds_nothing(*PAIR)


async def test_kept_pages_are_given_up_for_others_and_aborts_leak_none(keeping: Pair):
    """Prompts with a few beginnings, four at once, one of them aborted: the others are right.

    Memory has room for three of them, so that what is kept is thrown away all the time.
    """
    dice = random.Random(5)
    prompts = [token_ids(500, 500 + n % 4) + token_ids(200, 510 + n) for n in range(8)]
    right = [(await keeping.rig.aggregated(ids, greedy(8))).ids for ids in prompts]
    held = 0
    for _ in range(12):
        doomed, *others = dice.sample(range(8), 4)
        subject = Subject(keeping, new_job(), new_room_id(), prompts[doomed], 200)
        subject.start(*PAIR)
        answers = asyncio.gather(*(keeping.rig.split(prompts[n], greedy(8)) for n in others))
        await asyncio.sleep(dice.uniform(0.0, 0.5))
        await asyncio.gather(*(subject.abort(role) for role in PAIR))
        for n, answer in zip(others, await answers, strict=True):
            assert (answer.failure, answer.ids) == ("", right[n])
            assert isinstance(answer.last, JobFinished)
            assert answer.last.transfer is not None
            held += answer.last.transfer.held_tokens
        assert None not in (await subject.settle(10.0)).values()
    assert held > 0
    assert await keeping.free_after(time.monotonic(), PAIR, 5.0) is not None


@pytest.mark.slow
async def test_answers_that_outgrow_memory_beside_kept_pages_are_right(keeping: Pair):
    """Three that begin alike and need too much: SGLang takes one out and goes on with it later."""
    begin = token_ids(64, 600)
    prompts = [begin + token_ids(100, 601 + n) for n in range(3)]
    most = KEPT_TOKENS // 3
    assert sum(len(ids) + most for ids in prompts) > KEPT_TOKENS
    right = [(await keeping.rig.aggregated(ids, greedy(most))).ids for ids in prompts]
    for _ in range(2):
        answers = await asyncio.gather(*(keeping.rig.split(ids, greedy(most)) for ids in prompts))
        assert [answer.failure for answer in answers] == [""] * 3
        assert [answer.ids for answer in answers] == right
    assert await keeping.rig.holds_nothing(*PAIR)
