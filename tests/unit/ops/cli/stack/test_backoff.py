"""The pauses between two starts of a process."""

from __future__ import annotations

from ops.cli.stack.backoff import LONGEST_S, STEADY_S, Backoff


def test_first_end_is_answered_at_once() -> None:
    """A healthy process that dies is started again without a pause."""
    assert Backoff().after(1.0) == 0.0


def test_pauses_double_up_to_a_limit() -> None:
    """A process that keeps ending waits longer each time, but never longer than the limit."""
    backoff = Backoff()
    pauses = [backoff.after(0.1) for _ in range(7)]
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, LONGEST_S, LONGEST_S]


def test_a_long_life_forgets_the_past() -> None:
    """After a steady life the next end counts as a first one."""
    backoff = Backoff()
    for _ in range(4):
        backoff.after(0.1)
    assert backoff.after(STEADY_S) == 0.0
    assert backoff.quick_ends == 1
