"""Outputs of a job whose answer is taken apart."""

import pytest

from libs.engine.parse import AnswerShaper, Parsed
from proto.errors import ErrorCode
from proto.gateway import FinishReason
from proto.host import JobFailed, JobFinished, JobTokens
from proto.ids import JobId
from proto.output import CallDelta, Details, TokenLogprob

JOB = JobId("j" * 28)


class Scripted:
    """A parser that gives what it was told, step by step."""

    def __init__(self, *steps):
        self._steps = list(steps)
        self.thinking = False

    def feed(self, _text):
        """The next step."""
        parsed, self.thinking = self._steps.pop(0)
        return parsed

    def end(self):
        """The last step."""
        return self._steps.pop(0)[0]


def tokens(count=1, **more):
    """An output of the engine."""
    return JobTokens(job=JOB, ids=b"\1\0\0\0" * count, text="raw", **more)


def finished(finish=FinishReason.STOP):
    """The end of a job."""
    return JobFinished(job=JOB, finish=finish, prompt_tokens=1, completion_tokens=9)


def test_log_probabilities_stay_with_their_tokens():
    """Ids and log-probabilities are as they came, whatever becomes of the text."""
    entry = TokenLogprob(token=1, logprob=-0.5)
    call = CallDelta(index=0, id="c", name="f")
    shaper = AnswerShaper(Scripted((Parsed("a", "b", (call,)), False), (Parsed(), False)))
    first = shaper.shape(tokens(details=Details(logprobs=(entry,))))
    assert first.text == "a"
    assert first.details == Details(reasoning="b", calls=(call,), logprobs=(entry,))
    held = shaper.shape(tokens(details=Details(logprobs=(entry,))))
    assert (held.text, held.details) == ("", Details(logprobs=(entry,)))
    assert held.ids == tokens().ids


@pytest.mark.parametrize(
    ("finish", "called", "shown"),
    [
        (FinishReason.STOP, True, FinishReason.TOOL_CALLS),
        (FinishReason.STOP, False, FinishReason.STOP),
        (FinishReason.LENGTH, True, FinishReason.LENGTH),
    ],
)
def test_an_answer_that_called_and_stopped_has_made_calls(finish, called, shown):
    """The reason tells of calls only where the model was done by itself."""
    calls = (CallDelta(index=0, id="c", name="f"),) if called else ()
    shaper = AnswerShaper(Scripted((Parsed(calls=calls), False), (Parsed("rest"), False)))
    shaper.shape(tokens())
    end = shaper.shape(finished(finish))
    assert (end.finish, end.text) == (shown, "rest")


def test_a_call_that_comes_with_the_end_counts():
    """What was held back until the end is given with it."""
    call = CallDelta(index=0, id="c", name="f")
    end = AnswerShaper(Scripted((Parsed(calls=(call,)), False))).shape(finished())
    assert end.finish is FinishReason.TOOL_CALLS
    assert end.details == Details(calls=(call,))


def test_tokens_of_the_reasoning_are_counted_with_its_marks():
    """Tokens that turn out to begin the reasoning count, those of the text do not."""
    shaper = AnswerShaper(
        Scripted(
            (Parsed(), False),
            (Parsed(), True),
            (Parsed(reasoning="x"), True),
            (Parsed(reasoning="y"), False),
            (Parsed(), False),
            (Parsed("text"), False),
            (Parsed(), False),
        )
    )
    for count in (1, 1, 2, 1, 1, 1):
        shaper.shape(tokens(count))
    assert shaper.shape(finished()).reasoning_tokens == 5


def test_failures_pass():
    """A job that fails fails as it did."""
    failed = JobFailed(job=JOB, code=ErrorCode.CANCELLED)
    assert AnswerShaper(Scripted()).shape(failed) is failed
