"""The arithmetic of the scripted model."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from libs.engine.script.answer import Alphabet, Model, mix, mix_one, prompt_states, reference
from libs.engine.script.settings import AnswerMode

ALPHABET = Alphabet(words=tuple(range(10, 30010)), eos=1, vocab=32000)
MODEL = Model(alphabet=ALPHABET)
ECHO = Model(alphabet=ALPHABET, answer=AnswerMode.ECHO)

PROMPTS = st.lists(st.integers(0, 31999), min_size=1, max_size=60)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_one_value_mixes_like_many(values):
    """The scalar and the array form of the mixer agree."""
    array = np.array(values, dtype=np.uint64)
    assert mix(array).tolist() == [mix_one(value) for value in values]


@given(PROMPTS, st.integers(1, 12))
def test_a_shorter_answer_is_the_beginning_of_a_longer_one(prompt, count):
    """Asking for fewer tokens changes none of them."""
    longer = reference(MODEL, prompt, 12, ignore_eos=True)
    assert reference(MODEL, prompt, count, ignore_eos=True) == longer[:count]


@given(PROMPTS, st.data())
def test_every_prompt_token_changes_the_answer(prompt, data):
    """An answer depends on each token of its prompt and on its place."""
    place = data.draw(st.integers(0, len(prompt) - 1))
    other = prompt.copy()
    other[place] = (other[place] + 1) % 32000
    assert reference(MODEL, prompt, 4, ignore_eos=True) != reference(
        MODEL, other, 4, ignore_eos=True
    )


@given(PROMPTS)
def test_order_changes_the_answer(prompt):
    """Two prompts with the same tokens in another order have other answers."""
    other = [*prompt, 1, 2]
    swapped = [*prompt, 2, 1]
    assert reference(MODEL, other, 4, ignore_eos=True) != reference(
        MODEL, swapped, 4, ignore_eos=True
    )


def test_a_seed_is_another_model():
    """Models with other seeds give other answers to the same prompt."""
    one, two = (
        reference(Model(alphabet=ALPHABET, seed=seed), [5, 6, 7], 8, ignore_eos=True)
        for seed in (1, 2)
    )
    assert one != two


def test_answers_end_by_themselves_unless_told_otherwise():
    """Without `ignore_eos` answers end with the end token, at about the mean length."""
    lengths = []
    for number in range(100):
        answer = reference(MODEL, [number, 7, 9], 500)
        assert answer[-1] == ALPHABET.eos
        assert ALPHABET.eos not in answer[:-1]
        lengths.append(len(answer))
    assert 24 < np.mean(lengths) < 96
    assert len(reference(MODEL, [1, 7, 9], 500, ignore_eos=True)) == 500


def test_an_echo_is_the_prompt_and_then_the_end():
    """In echo mode the answer is the prompt, also where it holds an end token."""
    prompt = [4, 1, 9, 11]
    assert reference(ECHO, prompt, 20) == [*prompt, ALPHABET.eos]
    assert reference(ECHO, prompt, 6, ignore_eos=True) == [*prompt, 4, 1]


def test_states_depend_on_all_tokens_before():
    """The state of a token changes with any token before it and with none after it."""
    tokens = np.arange(1, 50, dtype=np.uint32)
    other = tokens.copy()
    other[20] += 1
    same = prompt_states(tokens, 0) == prompt_states(other, 0)
    assert same[:20].all()
    assert not same[20:].any()


def test_blind_answers_depend_on_the_prompt_and_end_like_others():
    """An answer that does not look at KV still differs from prompt to prompt, and is drawn."""
    blind = Model(alphabet=ALPHABET, answer=AnswerMode.BLIND)
    one, two = (reference(blind, [5, 6, last], 30, ignore_eos=True) for last in (7, 8))
    assert one != two
    assert len(set(one)) > 20
    lengths = [len(reference(blind, [number, 7], 500)) for number in range(100)]
    assert 24 < np.mean(lengths) < 96
