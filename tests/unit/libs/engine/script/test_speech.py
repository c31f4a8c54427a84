"""What a prompt and a request's sampling make the scripted model say."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.engine.script.answer import reference
from libs.engine.script.settings import Action, AnswerMode, Fault, Phase, ScriptOptions
from libs.engine.script.speech import Bend, likelihoods
from libs.engine.scripted import model_of, vocabulary_of
from proto.gateway import FinishReason
from proto.host import JobKind
from proto.sampling import SamplingParams
from proto.workers import Feature
from tests.support.engines import (
    both_sides,
    collect,
    engine_of,
    host_options,
    make_job,
    pair,
    prompt_of,
)
from tests.support.plane import Exchange
from tests.support.words import write_words

TEXT = 'Well: <call>\n{"name": "f", "arguments": {}}\n</call> \U0001f468\u200d\U0001f469 e\u0301'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder with one token a byte."""
    return str(write_words(tmp_path_factory.mktemp("speech")))


def saying(folder, *faults):
    """Options of engines that say what they are told."""
    script = ScriptOptions(answer=AnswerMode.SAY, faults=faults)
    return {"model_path": folder, "script": script}


def tokens_of(folder, text):
    """The tokens of a prompt."""
    return vocabulary_of(host_options(model_path=folder)).tokens(text)


def over_a_transfer(ids, options, **sampling):
    """What a pair of engines answers."""

    async def scenario():
        async with pair(**options) as (p, d, address, _):
            sides = both_sides(p, d, address, 1, ids, max_tokens=200, ignore_eos=False, **sampling)
            return (await asyncio.gather(*sides))[1]

    return asyncio.run(scenario())


def alone(ids, **options):
    """What one engine answers."""

    async def scenario():
        async with engine_of(host_options(**options)) as (engine, _):
            return await collect(engine.run(make_job(1, ids, max_tokens=99, ignore_eos=False)))

    return asyncio.run(scenario())


def test_a_told_text_is_said_over_a_transfer(folder):
    """Decode says the marked text of the prompt, whole characters only, and ends behind it."""
    ids = tokens_of(folder, f"One [[say]]not this[[/say]] [[say]]{TEXT}[[/say]] and so on")
    answer = over_a_transfer(ids, saying(folder))
    assert answer.text == TEXT
    assert answer.end.finish is FinishReason.STOP
    assert answer.ids == expected_of(folder, ids, 200)


def test_without_markers_the_answer_is_drawn(folder):
    """A prompt that tells nothing gets the answer that it gets from an engine that draws words."""
    ids = tokens_of(folder, "Hello [[say]] there")
    assert alone(ids, **saying(folder)).ids == alone(ids, model_path=folder).ids


@pytest.mark.parametrize("phase", [Phase.TRANSFER, Phase.DECODE])
def test_a_told_text_does_not_hide_wrong_kv(folder, phase):
    """One wrong bit of KV, far from the marked text, shows in what is said."""
    ids = tokens_of(folder, "Far away from it: " * 4 + "[[say]]Hello, world.[[/say]]")
    fault = Fault(when=phase, action=Action.CORRUPT)
    assert over_a_transfer(ids, saying(folder, fault)).text != "Hello, world."


def test_a_begun_text_is_said_to_its_end(folder):
    """A prompt that ends with a part of the marked text is answered with the rest of it."""
    ids = tokens_of(folder, "[[say]]Hello, world.[[/say]] assistant: Hello, w")
    assert alone(ids, **saying(folder)).text == "orld."


def expected_of(folder, ids, count, **sampling):
    """The right answer of an engine that says what it is told."""
    options = host_options(**saying(folder))
    params = SamplingParams(max_tokens=count, **sampling)
    model = model_of(options, vocabulary_of(options))
    return reference(model, ids, count, bend=Bend.of(params))


BENT = st.fixed_dictionaries(
    {},
    optional={
        "logit_bias": st.lists(
            st.tuples(st.integers(0, 400), st.sampled_from([-100.0, -3.0, 5.0, 100.0])), max_size=4
        ).map(tuple),
        "min_tokens": st.integers(0, 12),
        "seed": st.integers(-3, 3),
        "ignore_eos": st.booleans(),
        "temperature": st.sampled_from([0.0, 1.0]),
    },
)


@settings(max_examples=40, deadline=None)
@given(st.lists(BENT, min_size=1, max_size=4), st.sampled_from(list(AnswerMode)))
def test_bent_answers_are_the_reference(folder, wishes, mode):
    """Whatever requests ask for, and whoever shares the batch, answers are those of the oracle."""
    script = ScriptOptions(answer=mode, answer_tokens=5)
    options = host_options(model_path=folder, script=script)
    model = model_of(options, vocabulary_of(options))
    prompts = [
        tokens_of(folder, f"{number} [[say]]Hi {number}[[/say]]") for number in range(len(wishes))
    ]

    async def scenario():
        async with pair(Exchange(), model_path=folder, script=script) as (p, d, address, _):
            work = [
                both_sides(
                    p, d, address, n, ids, **({"max_tokens": 14, "ignore_eos": False} | wish)
                )
                for n, (ids, wish) in enumerate(zip(prompts, wishes, strict=True), 1)
            ]
            async with asyncio.timeout(20):
                return await asyncio.gather(*(side for sides in work for side in sides))

    answers = asyncio.run(scenario())[1::2]
    for answer, ids, wish in zip(answers, prompts, wishes, strict=True):
        bend = Bend.of(SamplingParams(max_tokens=14, **wish))
        assert answer.ids == reference(model, ids, 14, bend=bend)


def test_a_bias_of_a_hundred_forces_and_bans():
    """Forced tokens come in their order and nothing else does; banned ones never come."""
    options = host_options()
    model = model_of(options, vocabulary_of(options))
    forced = SamplingParams(max_tokens=6, logit_bias=((7, 100.0), (9, 100.0), (3, 100.0)))
    assert reference(model, [5, 6], 6, bend=Bend.of(forced)) == [7, 9, 3, 7, 9, 3]
    plain = reference(model, [5, 6], 6, ignore_eos=True)
    bias = tuple((token, -100.0) for token in plain)
    banned = SamplingParams(max_tokens=6, ignore_eos=True, logit_bias=bias)
    assert not set(plain) & set(reference(model, [5, 6], 6, bend=Bend.of(banned)))


def test_no_answer_ends_before_its_least_length():
    """With min_tokens an answer that would end by itself goes on, and may end behind them."""
    options = host_options(script=ScriptOptions(answer_tokens=2))
    model = model_of(options, vocabulary_of(options))
    lengths = set()
    for prompt in range(20):
        bend = Bend.of(SamplingParams(max_tokens=99, min_tokens=9))
        lengths.add(len(reference(model, [prompt, 6], 99, bend=bend)))
    assert min(lengths) == 10
    assert len(lengths) > 1


def test_seeds_count_only_where_there_is_chance():
    """Seeds give different answers at temperature 1 and the same one at temperature 0."""
    options = host_options()
    model = model_of(options, vocabulary_of(options))

    def answer(seed, temperature):
        bend = Bend.of(SamplingParams(max_tokens=8, seed=seed, temperature=temperature))
        return tuple(reference(model, [5, 6], 8, bend=bend))

    assert len({answer(seed, 1.0) for seed in (None, 0, 1, 2)}) == 4
    assert len({answer(seed, 0.0) for seed in (None, 0, 1, 2)}) == 1


@given(st.integers(0, 50), st.integers(0, 2**64 - 1), st.integers(0, 20), st.integers(1, 40))
def test_likelihoods_are_ordered_and_add_up(token, drawn, count, words):
    """The said token leads, nothing is named twice, all chances together are at most one."""
    own, top = likelihoods(token, drawn, range(words), count)
    longer = likelihoods(token, drawn, range(words), count + 5)[1]
    assert longer[:count] == top
    assert list(top) == sorted(top, key=lambda pair: -pair[1])
    assert len({other for other, _ in top}) == len(top)
    assert sum(np.exp(value) for _, value in longer) <= 1.0
    assert not top or top[0] == (token, own)


def test_a_job_of_each_kind_has_a_bend():
    """Prefill draws the first token as decode would: its job carries the same wishes."""
    job = make_job(1, [1], kind=JobKind.PREFILL, min_tokens=3)
    assert Bend.of(job.sampling).least == 3


async def test_each_token_has_its_log_probabilities_on_both_ways():
    """Over a transfer and alone, each token has one entry, the first one too, and they agree."""
    ids = prompt_of(4, 20)
    async with pair() as (p, d, address, _):
        sides = both_sides(p, d, address, 1, ids, max_tokens=6, logprobs=3)
        prefill, split = await asyncio.gather(*sides)
    async with engine_of(host_options()) as (engine, _):
        alone_ = await collect(engine.run(make_job(1, ids, max_tokens=6, logprobs=3)))
        without = await collect(engine.run(make_job(2, ids, max_tokens=6)))
    assert prefill.details == []
    entries = [entry for details in split.details for entry in details.logprobs]
    assert [entry.token for entry in entries] == split.ids == without.ids
    assert all(len(entry.top) == 3 for entry in entries)
    assert all(entry.top[0] == (entry.token, entry.logprob) for entry in entries)
    assert split.details == alone_.details
    assert without.details == []


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_show_only_where_asked_for(folder, skip):
    """A special token that the model says is text only without skip_special_tokens."""
    ids = tokens_of(folder, "[[say]]a<|im_start|>b[[/say]]")
    answer = over_a_transfer(ids, saying(folder), skip_special_tokens=skip)
    assert answer.text == ("ab" if skip else "a<|im_start|>b")


@pytest.mark.parametrize("claims", [True, False])
async def test_guides_are_only_claimed_where_a_test_wants_it(claims):
    """The engine follows no guide; it says that it does where its script tells it to."""
    script = ScriptOptions(answer=AnswerMode.SAY, guides=claims)
    async with engine_of(host_options(script=script)) as (_, ready):
        assert (Feature.GUIDES in ready.features) is claims
        assert Feature.LOGPROBS in ready.features


def test_forced_bytes_of_an_emoji_are_text_only_as_a_whole(folder):
    """Bytes of a character come out with its last one; of a character that is cut nothing does."""
    emoji = "\U0001f468"
    bias = tuple((token, 100.0) for token in tokens_of(folder, emoji))
    answer = over_a_transfer(tokens_of(folder, "Hi"), saying(folder), logit_bias=bias)
    assert answer.text == emoji * 50
    assert answer.chunks == 200

    async def cut():
        async with engine_of(host_options(model_path=folder)) as (engine, _):
            return await collect(engine.run(make_job(1, [5], max_tokens=10, logit_bias=bias)))

    assert asyncio.run(cut()).text == emoji * 2
