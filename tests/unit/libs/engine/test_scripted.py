"""The scripted engine in one process: answers, limits, aborts and faults."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.engine.api import EngineDead
from libs.engine.script.settings import Action, AnswerMode, Fault, Phase, Profile, ScriptOptions
from libs.engine.scripted import build, vocabulary_of
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import JobFailed, JobFinished, JobKind, JobTokens
from tests.support.engines import (
    both_sides,
    collect,
    empty,
    engine_of,
    expected,
    host_options,
    make_job,
    pair,
    prompt_of,
    until,
)
from tests.support.plane import Exchange

PREFILL, DECODE = JobKind.PREFILL, JobKind.DECODE
SLOW = Profile(prefill_token_s=0.001, decode_token_s=0.002, chunk_tokens=16)


async def test_an_aggregated_answer_is_the_reference():
    """One engine alone gives the reference answer, one token an output, and holds nothing after."""
    options = host_options()
    ids = prompt_of(1, 50)
    async with engine_of(options) as (engine, ready):
        answer = await collect(engine.run(make_job(1, ids, max_tokens=20)))
        assert empty(engine)
    assert answer.ids == expected(options, ids, 20)
    assert answer.text == vocabulary_of(options).text(answer.ids)
    assert answer.chunks == 20
    assert answer.end.finish is FinishReason.LENGTH
    assert (answer.end.prompt_tokens, answer.end.completion_tokens) == (50, 20)
    assert ready.kv_total_tokens == 4096


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 70), min_size=1, max_size=12),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([5, 16, 2048]),
    st.integers(1, 8),
)
def test_split_answers_are_the_reference(lengths, page_size, chunk, slots):
    """Whatever runs together, and however prompts are cut, a pair answers like one engine."""
    script = ScriptOptions(profile=Profile(chunk_tokens=chunk))

    async def scenario():
        async with pair(page_size=page_size, slots=slots, kv_tokens=512, script=script) as parts:
            p, d, address, _ = parts
            work = [
                both_sides(p, d, address, n, prompt_of(n, length), max_tokens=9)
                for n, length in enumerate(lengths, 1)
            ]
            async with asyncio.timeout(20):
                answers = await asyncio.gather(*(side for sides in work for side in sides))
            assert empty(p)
            assert empty(d)
            return answers

    answers = asyncio.run(scenario())
    for n, length in enumerate(lengths, 1):
        prefill, decode = answers[2 * n - 2 : 2 * n]
        assert prefill.ids == []
        assert decode.ids == expected(host_options(), prompt_of(n, length), 9)


async def test_the_kind_of_answer_does_not_depend_on_who_shares_the_batch():
    """The same prompt gives the same answer alone and among others, in wide and narrow KV."""
    script = ScriptOptions(layers=3, kv_heads=2, head_dim=16)
    options = host_options(script=script)
    ids = prompt_of(3, 33)
    async with engine_of(options) as (engine, _):
        alone = await collect(engine.run(make_job(1, ids)))
        others = [engine.run(make_job(n, prompt_of(n, 3 * n))) for n in range(3, 8)]
        among = await collect(engine.run(make_job(2, ids)))
        for other in others:
            await collect(other)
    assert alone.ids == among.ids == expected(options, ids, 16)


async def test_reports_and_times_are_filled():
    """Both sides report the transfer's bytes; times are of the right stages."""
    script = ScriptOptions(profile=SLOW)
    async with pair(script=script) as (p, d, address, _):
        sides = both_sides(p, d, address, 1, prompt_of(1, 40), max_tokens=4)
        prefill, decode = await asyncio.gather(*sides)
    assert prefill.end.transfer.moved_bytes == decode.end.transfer.moved_bytes == 40 * 64
    assert prefill.end.forward_s >= 0.04
    assert prefill.end.wait_kv_s == 0
    assert decode.end.wait_kv_s >= 0.04
    assert decode.end.queue_s >= decode.end.wait_kv_s
    assert decode.end.completion_tokens == 4
    assert prefill.end.completion_tokens == 0


async def test_pages_left_by_another_request_show_in_the_answer():
    """KV that never arrived leaves another request's bytes in the pages: the answer is wrong."""

    class Loses(Exchange):
        def _copy(self, offer, fetch, pages, first):
            if first:
                return
            super()._copy(offer, fetch, pages, first)

    script = ScriptOptions(profile=Profile(chunk_tokens=8))
    ids = prompt_of(1, 24)
    async with pair(Loses(), script=script) as (p, d, address, _):
        answers = await asyncio.gather(*both_sides(p, d, address, 1, ids))
    right = expected(host_options(), ids, 16)
    assert answers[1].ids[0] == right[0]
    assert answers[1].ids[1:] != right[1:]


@pytest.mark.parametrize("phase", [Phase.TRANSFER, Phase.DECODE])
async def test_one_changed_bit_shows_in_the_answer(phase):
    """The oracle can fail: a scripted bit flip gives another answer."""
    fault = Fault(when=phase, action=Action.CORRUPT)
    async with pair(script=ScriptOptions(faults=(fault,))) as (p, d, address, _):
        ids = prompt_of(1, 24)
        answers = await asyncio.gather(*both_sides(p, d, address, 1, ids))
    assert answers[1].ids != expected(host_options(), ids, 16)


async def test_echo_reads_the_prompt_from_received_pages():
    """An echo over a transfer is the prompt, and ends behind it."""
    script = ScriptOptions(answer=AnswerMode.ECHO)
    ids = prompt_of(1, 21)
    async with pair(script=script) as (p, d, address, _):
        sides = both_sides(p, d, address, 1, ids, max_tokens=50, ignore_eos=False)
        _, decode = await asyncio.gather(*sides)
    assert decode.ids == [*ids, 0]
    assert decode.end.finish is FinishReason.STOP
    assert decode.text == "".join(f" w{token}" for token in ids)


async def test_an_answer_ends_by_itself():
    """An end token finishes with `stop`, counts as a token and has no text."""
    options = host_options(script=ScriptOptions(answer_tokens=6))
    ids = prompt_of(2, 10)
    right = expected(options, ids, 1000, ignore_eos=False)
    async with engine_of(options) as (engine, _):
        answer = await collect(engine.run(make_job(1, ids, max_tokens=1000, ignore_eos=False)))
    assert answer.ids == right
    assert right[-1] == 0
    assert answer.end.finish is FinishReason.STOP
    assert "w0" not in answer.text.split()


async def test_stop_strings_end_the_text_before_them():
    """A stop string that begins inside one token and ends inside another never shows."""
    options = host_options()
    ids = prompt_of(2, 10)
    right = expected(options, ids, 8)
    words = [f" w{token}" for token in right]
    stop = words[3][-2:] + words[4][:4]
    async with engine_of(options) as (engine, _):
        answer = await collect(engine.run(make_job(1, ids, stop=(stop, "zzz"))))
        other = await collect(engine.run(make_job(2, ids, stop_token_ids=(right[5],))))
    assert answer.text == "".join(words[:4])[:-2]
    assert answer.end.finish is FinishReason.STOP
    assert answer.ids == right[:5]
    assert other.ids == right[:6]
    assert other.text == "".join(words[:5])


async def test_held_back_text_is_shown_when_the_answer_ends_otherwise():
    """An answer that ends by length while a stop string could still come is complete."""
    options = host_options()
    ids = prompt_of(2, 10)
    words = [f" w{token}" for token in expected(options, ids, 4)]
    async with engine_of(options) as (engine, _):
        stop = words[3] + "never"
        answer = await collect(engine.run(make_job(1, ids, max_tokens=4, stop=(stop,))))
    assert answer.text == "".join(words)


@pytest.mark.parametrize(
    ("ids", "max_tokens", "code"),
    [
        ([], 4, ErrorCode.INVALID_REQUEST),
        (prompt_of(1, 60), 5, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
        (prompt_of(1, 65), 1, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
    ],
)
async def test_what_cannot_fit_is_refused_at_once(ids, max_tokens, code):
    """A job that can never run fails at once, and the next one runs."""
    async with engine_of(host_options(context_tokens=64)) as (engine, ready):
        assert ready.max_request_tokens == 64
        answer = await collect(engine.run(make_job(1, ids, max_tokens=max_tokens)))
        assert answer.end.code is code
        fits = await collect(engine.run(make_job(2, prompt_of(1, 60), max_tokens=4)))
    assert isinstance(fits.end, JobFinished)


async def test_a_live_job_id_is_refused():
    """A second run of a live id fails and leaves the first one alone."""
    async with engine_of(host_options()) as (engine, _):
        job = make_job(1, prompt_of(1, 9))
        first, second = engine.run(job), engine.run(job)
        assert isinstance((await collect(second)).end, JobFailed)
        assert isinstance((await collect(first)).end, JobFinished)


async def test_jobs_wait_for_slots_and_pages_in_order():
    """With room for two jobs the third waits, and the load says so."""
    options = host_options(kv_tokens=64, slots=8, script=ScriptOptions(profile=SLOW))
    async with engine_of(options) as (engine, _):
        runs = [engine.run(make_job(n, prompt_of(n, 20), max_tokens=8)) for n in range(1, 6)]
        first = await anext(runs[0])
        load = engine.load()
        assert isinstance(first, JobTokens)
        assert (load.running, load.waiting, load.kv_used_tokens) == (2, 3, 56)
        answers = await asyncio.gather(*map(collect, runs))
        assert empty(engine)
    for n, answer in enumerate(answers, 1):
        right = expected(options, prompt_of(n, 20), 8)
        assert answer.ids == (right[1:] if n == 1 else right)


async def queued(p, d, address, ids):
    """A decode job behind one that holds everything."""
    blocker = d.run(make_job(90, ids, kind=JobKind.AGGREGATED, max_tokens=4000))
    await anext(blocker)
    target = d.run(make_job(1, ids, kind=DECODE, source=address, max_tokens=100))
    return [d.abort, d.abort], [target, blocker], [make_job(1, ids).job, make_job(90, ids).job]


async def prefilling(p, d, address, ids):
    """A prompt of which some chunks are computed."""
    long = prompt_of(5, 2000)
    target = d.run(make_job(1, long, kind=DECODE, source=address))
    source = p.run(make_job(1, long, kind=PREFILL))
    await until(lambda: p.load().kv_used_tokens and d.load().kv_used_tokens)
    await asyncio.sleep(0.05)
    return [p.abort, d.abort], [source, target], [make_job(1, ids).job] * 2


async def decoding(p, d, address, ids):
    """An answer that has begun."""
    target = d.run(make_job(1, ids, kind=DECODE, source=address, max_tokens=2000))
    source = p.run(make_job(1, ids, kind=PREFILL))
    await anext(target)
    await collect(source)
    return [d.abort], [target], [make_job(1, ids).job]


async def unwanted(p, d, address, ids):
    """A prefill job that no decode has asked for."""
    source = p.run(make_job(1, ids, kind=PREFILL))
    await asyncio.sleep(0.01)
    assert p.load().kv_used_tokens == 0
    return [p.abort], [source], [make_job(1, ids).job]


@pytest.mark.parametrize("phase", [queued, prefilling, decoding, unwanted])
async def test_an_abort_frees_at_once_in_every_phase(phase):
    """When `abort` returns the engine holds nothing for the job, and its run ends as cancelled."""
    ids = prompt_of(1, 40)
    async with pair(kv_tokens=4096, script=ScriptOptions(profile=SLOW)) as (p, d, address, _):
        aborts, runs, jobs = await phase(p, d, address, ids)
        for abort, job in zip(aborts, jobs, strict=True):
            await abort(job)
            await abort(job)
        assert d.load().kv_used_tokens == 0
        for run in runs:
            assert (await collect(run)).end.code in {
                ErrorCode.CANCELLED,
                ErrorCode.KV_TRANSFER_FAILED,
            }
        await until(lambda: empty(p) and empty(d))
        after = await asyncio.gather(*both_sides(p, d, address, 2, ids, max_tokens=5))
    assert after[1].ids == expected(host_options(), ids, 5)


async def test_a_late_chunk_never_reaches_a_reused_page():
    """Chunks in flight when decode aborts are dropped, and the pages' next user is right."""
    exchange = Exchange(held=True)
    async with pair(exchange, decode={"kv_tokens": 64}) as (p, d, address, _):
        first = both_sides(p, d, address, 1, prompt_of(1, 40), max_tokens=8)
        runs = [asyncio.ensure_future(side) for side in first]
        await until(lambda: exchange.waiting)
        late, exchange.waiting = exchange.waiting, []
        await d.abort(make_job(1, []).job)
        assert empty(d)
        ids = prompt_of(2, 40)
        second = [
            asyncio.ensure_future(side) for side in both_sides(p, d, address, 2, ids, max_tokens=8)
        ]
        await until(lambda: exchange.waiting)
        exchange.deliver()
        exchange.waiting = late
        exchange.deliver()
        answers = await asyncio.gather(*second)
        ended = await asyncio.gather(*runs)
    assert answers[1].ids == expected(host_options(), ids, 8)
    assert [answer.end.code for answer in ended] == [
        ErrorCode.KV_TRANSFER_FAILED,
        ErrorCode.CANCELLED,
    ]


@pytest.mark.parametrize(
    ("when", "code"),
    [
        (Phase.PREFILL, ErrorCode.ENGINE_ERROR),
        (Phase.TRANSFER, ErrorCode.KV_TRANSFER_FAILED),
        (Phase.DECODE, ErrorCode.ENGINE_ERROR),
    ],
)
async def test_a_scripted_error_fails_only_its_job(when, code):
    """The nth job that reaches a phase fails there, on both sides at once; the others answer."""
    script = ScriptOptions(faults=(Fault(when=when, action=Action.ERROR, nth=2),))
    side = "decode" if when is Phase.DECODE else "prefill"
    async with pair(**{side: {"script": script}}) as (p, d, address, _):
        for n in (1, 2, 3):
            ids = prompt_of(n, 20)
            prefill, decode = await asyncio.gather(*both_sides(p, d, address, n, ids))
            if n == 2:
                struck = decode if side == "decode" else prefill
                assert struck.end.code is code
                assert isinstance(decode.end, JobFailed)
            else:
                assert decode.ids == expected(host_options(), ids, 16)
        assert empty(p)
        assert empty(d)


async def test_a_stall_holds_one_job_and_not_the_others():
    """A job that stalls for ever leaves only by abort; a short stall ends by itself."""
    faults = (
        Fault(when=Phase.PREFILL, action=Action.STALL, nth=1),
        Fault(when=Phase.DECODE, action=Action.STALL, nth=1, seconds=0.1, after_tokens=2),
    )
    options = host_options(script=ScriptOptions(faults=faults))
    loop = asyncio.get_running_loop()
    async with engine_of(options) as (engine, _):
        stuck = asyncio.ensure_future(collect(engine.run(make_job(1, prompt_of(1, 9)))))
        began = loop.time()
        answer = await collect(engine.run(make_job(2, prompt_of(2, 9))))
        assert loop.time() - began >= 0.1
        assert answer.ids == expected(options, prompt_of(2, 9), 16)
        assert not stuck.done()
        await engine.abort(make_job(1, []).job)
        assert (await stuck).end.code is ErrorCode.CANCELLED
        assert empty(engine)


async def test_a_fault_may_choose_by_prompt_text_and_attempt():
    """Only the first attempt of requests whose prompt has the text is struck."""
    fault = Fault(when=Phase.PREFILL, action=Action.ERROR, text=" w77 ", attempt=1)
    async with engine_of(host_options(script=ScriptOptions(faults=(fault,)))) as (engine, _):
        ends = [
            (await collect(engine.run(make_job(n, ids, attempt=attempt)))).end
            for n, (ids, attempt) in enumerate(
                [([5, 77, 9], 1), ([5, 77, 9], 2), ([5, 777, 9], 1)], 1
            )
        ]
    assert [isinstance(end, JobFailed) for end in ends] == [True, False, False]


async def test_slow_steps_take_longer():
    """A slow job delays each of its steps."""
    fault = Fault(when=Phase.DECODE, action=Action.SLOW, seconds=0.02)
    loop = asyncio.get_running_loop()
    async with engine_of(host_options(script=ScriptOptions(faults=(fault,)))) as (engine, _):
        began = loop.time()
        await collect(engine.run(make_job(1, prompt_of(1, 9), max_tokens=6)))
        assert loop.time() - began >= 0.1


async def test_a_slow_sender_spreads_its_chunks():
    """A slow transfer pauses between pushes and still arrives whole."""
    script = ScriptOptions(
        profile=Profile(chunk_tokens=8),
        faults=(Fault(when=Phase.TRANSFER, action=Action.SLOW, seconds=0.03),),
    )
    ids = prompt_of(1, 24)
    async with pair(prefill={"script": script}) as (p, d, address, _):
        _, decode = await asyncio.gather(*both_sides(p, d, address, 1, ids))
    assert decode.ids == expected(host_options(), ids, 16)
    assert decode.end.transfer.chunks > 1
    assert decode.end.wait_kv_s >= 0.03


async def test_a_crash_ends_every_run():
    """When the engine dies, its runs end with EngineDead and new ones are refused."""
    fault = Fault(when=Phase.DECODE, action=Action.CRASH, after_tokens=3)
    async with engine_of(host_options(script=ScriptOptions(faults=(fault,)))) as (engine, _):
        with pytest.raises(EngineDead, match="Crashed"):
            await collect(engine.run(make_job(1, prompt_of(1, 9))))
        assert "Crashed" in await engine.wait_dead()
        with pytest.raises(EngineDead):
            engine.run(make_job(2, prompt_of(1, 9)))
        with pytest.raises(EngineDead):
            await engine.abort(make_job(2, []).job)


async def test_a_scripted_start_error_is_told():
    """An engine told to fail at the start raises EngineDead."""
    fault = Fault(when=Phase.START, action=Action.ERROR)
    with pytest.raises(EngineDead, match="scripted"):
        async with engine_of(host_options(script=ScriptOptions(faults=(fault,)))):
            pass


async def test_a_stopped_engine_ends_its_runs_and_its_plane():
    """After `stop` every run has ended and the data plane is closed."""
    async with pair(script=ScriptOptions(profile=SLOW)) as (_, d, address, exchange):
        target = d.run(make_job(1, prompt_of(1, 40), kind=DECODE, source=address))
        await asyncio.sleep(0.01)
        await d.stop()
        with pytest.raises(EngineDead, match="stopped"):
            await collect(target)
        assert await d.wait_dead() == "stopped"
        assert all(end.plane.closed for end in exchange.fetches.values())


def test_a_model_folder_without_tokenizer_is_told(tmp_path):
    """The host can say why an engine could not be made."""
    with pytest.raises(EngineDead, match=r"tokenizer\.json"):
        build(host_options(model_path=str(tmp_path)))


async def test_a_blind_engine_moves_kv_and_does_not_look_at_it():
    """Wrong KV does not show in a blind answer; the bytes are moved all the same."""
    fault = Fault(when=Phase.DECODE, action=Action.CORRUPT)
    script = ScriptOptions(answer=AnswerMode.BLIND, faults=(fault,))
    ids = prompt_of(1, 24)
    async with pair(script=script) as (p, d, address, _):
        sides = both_sides(p, d, address, 1, ids, max_tokens=150)
        _, decode = await asyncio.gather(*sides)
    assert decode.ids == expected(host_options(script=script), ids, 150)
    assert decode.end.transfer is not None
    assert decode.end.transfer.moved_bytes > 0
