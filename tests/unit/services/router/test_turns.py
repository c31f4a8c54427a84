"""First come, first placed, also over several slices of waiting."""

from libs.clock import SystemClock
from proto.ids import RequestId
from services.router.turns import Turns

A, B = RequestId("a" * 26), RequestId("b" * 26)


class StepClock(SystemClock):
    """A clock that moves when told."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_first_to_come_is_first() -> None:
    """A later request waits for an earlier one that is present."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(B)
    clock.now = 1.0
    turns.enter(A)
    assert turns.is_first(B)
    assert not turns.is_first(A)
    turns.leave(B, placed=True)
    assert turns.is_first(A)


def test_a_turn_survives_the_gap_between_two_slices() -> None:
    """Who asks again at once is still in front of who came later."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(A)
    clock.now = 0.5
    turns.enter(B)
    turns.leave(A, placed=False)
    assert turns.is_first(B)
    clock.now = 0.6
    turns.enter(A)
    assert turns.is_first(A)
    assert turns.waited_s(A) == 0.6


def test_a_turn_is_lost_after_a_long_absence() -> None:
    """Who went away for more than two seconds queues anew, and nothing is kept for it."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(A)
    turns.leave(A, placed=False)
    clock.now = 3.0
    turns.enter(B)
    clock.now = 4.0
    turns.enter(A)
    assert turns.is_first(B)
    assert not turns.is_first(A)
