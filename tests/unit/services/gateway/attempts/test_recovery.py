"""A second attempt is made only where it is right, and never without limit."""

import pytest

from proto.errors import ERRORS, ErrorCode
from proto.sampling import Guide, GuideKind, SamplingParams
from services.gateway.api import Recover
from services.gateway.attempts.recovery import Budget, Recovery, why_not_continue

GREEDY = SamplingParams(max_tokens=100, temperature=0.0)
DRAWN = SamplingParams(max_tokens=100, temperature=1.0)


def refusal(recovery: Recovery, code: ErrorCode, emitted: int = 0, **changes: object) -> str | None:
    facts: dict[str, object] = {"text_is_whole": True, "left_s": 60.0}
    return recovery.refusal(code, emitted=emitted, **(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", list(ErrorCode))
def test_before_the_first_token_the_table_decides(code: ErrorCode) -> None:
    """Exactly the codes that the error table allows are tried again before the first token."""
    allowed = refusal(Recovery(Recover.NEVER, GREEDY), code) is None
    assert allowed is ERRORS[code].attempt_retryable


def test_there_is_one_retry_before_the_first_token() -> None:
    """A request is not tried a third time."""
    recovery = Recovery(Recover.ANY, GREEDY)
    assert refusal(recovery, ErrorCode.DECODE_LOST) is None
    recovery.count(emitted=0)
    assert refusal(recovery, ErrorCode.DECODE_LOST) == "it was tried again already"


def test_nothing_begins_when_the_deadline_is_near() -> None:
    """Work that nobody can wait for is not started."""
    assert refusal(Recovery(Recover.ANY, GREEDY), ErrorCode.DECODE_LOST, left_s=0.5)


def test_after_the_first_token_the_policy_decides() -> None:
    """`never` is the default stance; `greedy` needs temperature 0; `any` takes both."""
    lost = ErrorCode.DECODE_LOST
    assert refusal(Recovery(Recover.NEVER, GREEDY), lost, 5) == "the policy is never"
    assert refusal(Recovery(Recover.GREEDY, GREEDY), lost, 5) is None
    assert refusal(Recovery(Recover.GREEDY, DRAWN), lost, 5)
    assert refusal(Recovery(Recover.ANY, DRAWN), lost, 5) is None


def test_an_answer_moves_twice_at_most() -> None:
    """Migrations are counted apart from retries, and bounded."""
    recovery = Recovery(Recover.ANY, GREEDY)
    for _ in range(2):
        assert refusal(recovery, ErrorCode.DECODE_LOST, 5) is None
        recovery.count(emitted=5)
    assert refusal(recovery, ErrorCode.DECODE_LOST, 9) == "it has moved 2 times already"
    assert recovery.retries == 0


def test_a_new_owner_has_no_new_chances() -> None:
    """What former owners of a request have tried counts, whatever it was for."""
    assert refusal(Recovery(Recover.ANY, GREEDY, earlier=1), ErrorCode.DECODE_LOST)
    assert refusal(Recovery(Recover.ANY, GREEDY, earlier=1), ErrorCode.DECODE_LOST, 5) is None
    assert refusal(Recovery(Recover.ANY, GREEDY, earlier=2), ErrorCode.DECODE_LOST, 5)


def test_an_engine_error_is_not_carried_to_the_next_worker() -> None:
    """What the request itself caused would only fail again."""
    assert refusal(Recovery(Recover.ANY, GREEDY), ErrorCode.ENGINE_ERROR, 5)


@pytest.mark.parametrize(
    "changes",
    [{"frequency_penalty": 0.5}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.2}],
)
def test_penalties_forbid_to_go_on(changes: dict[str, float]) -> None:
    """An engine counts penalties over its own output only, so the continuation would differ."""
    sampling = SamplingParams(max_tokens=100, temperature=0.0, **changes)
    assert why_not_continue(Recover.ANY, sampling, emitted=5, text_is_whole=True)


@pytest.mark.parametrize(
    "changes",
    [{"guide": Guide(kind=GuideKind.REGEX, text="a+")}, {"logprobs": 0}, {"logprobs": 3}],
)
def test_guides_and_logprobs_forbid_to_go_on(changes: dict[str, object]) -> None:
    """A grammar is in the middle of an answer, and log-probabilities belong to one engine."""
    sampling = SamplingParams(max_tokens=100, temperature=0.0, **changes)
    assert why_not_continue(Recover.ANY, sampling, emitted=5, text_is_whole=True)


def test_an_answer_that_is_taken_apart_is_not_continued() -> None:
    """The parser of tool calls and reasoning lives in the decode that was lost."""
    recovery = Recovery(Recover.ANY, GREEDY, parsed=True)
    assert refusal(recovery, ErrorCode.DECODE_LOST, 5)
    assert refusal(recovery, ErrorCode.DECODE_LOST) is None


def test_text_that_is_held_back_forbids_to_go_on() -> None:
    """A half-matched stop string or half a character would be lost or shown twice."""
    assert why_not_continue(Recover.ANY, GREEDY, emitted=5, text_is_whole=False)


def test_a_full_answer_is_not_continued() -> None:
    """With no token left to generate there is nothing to ask another engine for."""
    assert why_not_continue(Recover.ANY, GREEDY, emitted=100, text_is_whole=True)


def test_a_quiet_gateway_may_make_three_second_attempts_a_minute() -> None:
    """The floor of the budget lets a small system recover."""
    budget = Budget()
    assert [budget.take(float(n)) for n in range(4)] == [True, True, True, False]
    assert budget.take(61.5)


def test_the_budget_grows_with_what_was_accepted() -> None:
    """A tenth of a minute's requests may be tried again, and no more."""
    budget = Budget()
    for n in range(100):
        budget.accept(n / 100)
    assert sum(budget.take(1.0) for _ in range(50)) == 10


def test_the_budget_forgets_after_a_minute() -> None:
    """Old requests pay for nothing."""
    budget = Budget()
    for _ in range(100):
        budget.accept(0.0)
    assert sum(budget.take(61.0) for _ in range(50)) == 3
