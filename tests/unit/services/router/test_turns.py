"""By priority, then first come, first placed, also over several slices of waiting."""

import asyncio

from libs.clock import SystemClock
from proto.ids import RequestId
from services.router.turns import HEAD_START_S, Turns

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
    turns.leave(B, for_good=True)
    assert turns.is_first(A)


def test_a_turn_survives_the_gap_between_two_slices() -> None:
    """Who asks again at once is still in front of who came later."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(A)
    clock.now = 0.5
    turns.enter(B)
    turns.leave(A, for_good=False)
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
    turns.leave(A, for_good=False)
    clock.now = 3.0
    turns.enter(B)
    clock.now = 4.0
    turns.enter(A)
    assert turns.is_first(B)
    assert not turns.is_first(A)


def test_who_waits_already_stays_in_front_of_who_comes() -> None:
    """Newcomers take no place of one who is only between two slices, however many there are."""
    clock = StepClock()
    turns = Turns(clock)
    assert turns.enter(A)
    clock.now = 0.8
    turns.leave(A, for_good=False)
    others = [RequestId(f"{n:026d}") for n in range(5)]
    assert all(turns.enter(other) for other in others)
    assert turns.ahead(others[-1]) == 5
    clock.now = 0.9
    assert not turns.enter(A)
    assert turns.ahead(A) == 0
    assert turns.is_first(A)


def test_who_is_refused_counts_no_more() -> None:
    """Only who comes back keeps a place; one that left for good is a newcomer next time."""
    turns = Turns(StepClock())
    turns.enter(A)
    turns.leave(A, for_good=True)
    turns.enter(B)
    assert turns.ahead(B) == 0
    assert turns.enter(A)


def test_a_higher_priority_goes_first() -> None:
    """Who comes later with a higher priority is in front; equals stay in order of arrival."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(A, 0)
    clock.now = 0.1
    turns.enter(B, 1)
    assert turns.is_first(B)
    assert not turns.is_first(A)
    assert (turns.ahead(A), turns.ahead(B)) == (1, 0)
    clock.now = 0.2
    later = RequestId("c" * 26)
    turns.enter(later, 1)
    assert turns.is_first(B)
    assert turns.ahead(later) == 1


def test_nobody_starves() -> None:
    """A stream of higher priority passes the lowest one for the head start, and not longer."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(A, -10)
    passed = 0.0
    for number in range(200):
        clock.now = number * 0.1
        turns.enter(RequestId(f"{number:026d}"), 10)
        if turns.is_first(A):
            break
        passed = clock.now
        turns.leave(RequestId(f"{number:026d}"), for_good=True)
    assert turns.is_first(A)
    assert passed <= 20 * HEAD_START_S < 10.0


def test_a_priority_survives_the_gap_between_two_slices() -> None:
    """Who asks again keeps its head start; who has left for good leaves nothing behind."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(A, 0)
    clock.now = 0.1
    turns.enter(B, 2)
    turns.leave(B, for_good=False)
    assert turns.is_first(A)
    turns.enter(B, 2)
    assert turns.is_first(B)
    turns.leave(B, for_good=True)
    turns.leave(A, for_good=True)
    assert not turns._head_s


async def test_a_change_wakes_only_who_is_first() -> None:
    """A slot that was freed is for one: the others sleep on, and the next wakes when it leaves."""
    clock = StepClock()
    turns = Turns(clock)
    woken: list[RequestId] = []

    async def wait(rid: RequestId) -> None:
        await turns.changed(rid, 30)
        woken.append(rid)

    turns.enter(A)
    clock.now = 1.0
    turns.enter(B)
    waiting = [asyncio.ensure_future(wait(rid)) for rid in (A, B)]
    await asyncio.sleep(0)
    turns.wake()
    await asyncio.sleep(0.01)
    assert woken == [A]
    turns.leave(A, for_good=True)
    await asyncio.gather(*waiting)
    assert woken == [A, B]


async def test_who_leaves_wakes_itself() -> None:
    """Whoever waits for a request that was taken out of the queue hears of it, first or not."""
    clock = StepClock()
    turns = Turns(clock)
    turns.enter(A)
    clock.now = 1.0
    turns.enter(B)
    waiting = asyncio.ensure_future(turns.changed(B, 30))
    await asyncio.sleep(0)
    turns.leave(B, for_good=True)
    await asyncio.wait_for(waiting, 5)
    assert turns.is_first(A)
