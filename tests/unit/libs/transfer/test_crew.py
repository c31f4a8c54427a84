"""Threads that share a copy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from libs.transfer.crew import Crew, threads_for

DEADLINE_S = 10.0


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Return a crew of three, which ends with the test."""
    made = Crew(3, 100)
    yield made
    made.close()


def helpers() -> int:
    """Count the threads of crews."""
    return sum(thread.name.startswith("pdbus-copy") for thread in threading.enumerate())


def test_each_part_is_done_once(crew: Crew) -> None:
    """However often a crew shares, all parts are done when it returns, and none twice."""
    for count in (0, 1, 2, 7, 50):
        done: list[int] = []
        crew.share(partial(done.append, place) for place in range(count))
        assert sorted(done) == list(range(count))


def test_threads_are_made_when_needed_and_end(crew: Crew) -> None:
    """There are none before a copy is shared, never more than said, and none after the end."""
    assert helpers() == 0
    crew.share([lambda: None])
    assert helpers() == 0
    for _ in range(20):
        crew.share([lambda: time.sleep(0.001)] * 6)
    assert 0 < helpers() <= 2
    crew.close()
    assert helpers() == 0
    crew.close()


def test_a_failure_ends_the_copy() -> None:
    """What one part raises is raised, when no part runs any more, and no other is begun."""
    crew = Crew(2, 100)
    helping, let_go = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        helping.set()
        assert let_go.wait(DEADLINE_S)
        done.append("slow")

    def fails() -> None:
        assert helping.wait(DEADLINE_S)
        threading.Timer(0.05, let_go.set).start()
        raise OSError("no such memory")

    try:
        with pytest.raises(OSError, match="no such memory"):
            crew.share([slow, fails, *[partial(done.append, "late")] * 9])
    finally:
        crew.close()
    assert done == ["slow"]


def test_a_helper_that_gets_no_core_is_not_waited_for() -> None:
    """A copy is complete although its helper never came to run."""
    crew, let_go = Crew(2, 100), threading.Event()
    done: list[int] = []
    try:
        crew._helpers().submit(let_go.wait, DEADLINE_S)
        crew.share(partial(done.append, place) for place in range(4))
        assert not let_go.is_set()
        assert done == [0, 1, 2, 3]
    finally:
        let_go.set()
        crew.close()


def test_short_copies_are_not_worth_it(crew: Crew) -> None:
    """One thread alone does what is short, and all where a crew is one thread."""
    assert not crew.is_worth(99)
    assert crew.is_worth(100)
    assert not Crew(1, 100).is_worth(1000)


@pytest.mark.parametrize(
    ("cores", "wanted", "threads"),
    [(1, None, 1), (2, None, 1), (4, None, 2), (64, None, 4), (2, 8, 2), (16, 3, 3), (4, 0, 1)],
)
def test_half_of_the_cores_are_left_to_engines(
    monkeypatch: pytest.MonkeyPatch, cores: int, wanted: int | None, threads: int
) -> None:
    """Unless a number is asked for, a crew takes half of the cores and at most four."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    assert threads_for(wanted) == threads
