from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from libs.transfer.ucx import Loop

WAIT_S = 5.0


class Stage:
    """A loop whose hooks are recorded."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ticks = threading.Semaphore(0)
        self.more_ticks = False
        self.loop = Loop(
            "loop-under-test",
            begin=lambda: self.events.append("begin"),
            tick=self._tick,
            settle=lambda: None,
            finish=lambda: self.events.append("finish"),
        )

    def run(self, command: Callable[[], None]) -> None:
        """Run a command on the loop's thread and wait for it."""
        done = threading.Event()
        self.loop.post(lambda: (command(), done.set()))
        assert done.wait(WAIT_S)

    def _tick(self, now: float) -> bool:
        self.ticks.release()
        return self.more_ticks


class Pipe:
    """A member that counts its turns and reads a byte in each."""

    def __init__(self) -> None:
        self.fd, self.end = os.pipe()
        os.set_blocking(self.fd, False)
        self.turns = threading.Semaphore(0)

    def turn(self) -> tuple[bool, bool]:
        """Read what is there."""
        try:
            os.read(self.fd, 1)
        except BlockingIOError:
            return False, False
        self.turns.release()
        return True, True

    def close(self) -> None:
        """Close both ends."""
        os.close(self.fd)
        os.close(self.end)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Return a running loop."""
    stage = Stage()
    stage.loop.start()
    yield stage
    stage.loop.end()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Return a member."""
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_commands_run_on_the_loops_thread(stage: Stage) -> None:
    """A command posted while the loop sleeps runs there, after `begin`."""
    names: list[str] = []
    stage.run(lambda: names.append(threading.current_thread().name))
    assert names == ["loop-under-test"]
    assert stage.events == ["begin"]


def test_a_readable_member_gets_turns_until_it_is_done(stage: Stage, pipe: Pipe) -> None:
    """Three bytes are three turns, however many events they were."""
    stage.run(lambda: stage.loop.add(pipe))
    os.write(pipe.end, b"abc")
    for _ in range(3):
        assert pipe.turns.acquire(timeout=WAIT_S)


def test_a_removed_member_gets_no_turn(stage: Stage, pipe: Pipe) -> None:
    """After `remove` nothing of a member is looked at, even if it was due."""
    stage.run(lambda: stage.loop.add(pipe))

    def remove() -> None:
        os.write(pipe.end, b"a")
        stage.loop.touch(pipe)
        stage.loop.remove(pipe)

    stage.run(remove)
    stage.run(lambda: stage.loop.touch(pipe))
    stage.run(lambda: None)
    assert not pipe.turns.acquire(blocking=False)


def test_ticks_go_on_only_while_something_is_due(stage: Stage) -> None:
    """A command causes a tick; more follow while the last one said so."""
    stage.more_ticks = True
    stage.run(lambda: None)
    for _ in range(3):
        assert stage.ticks.acquire(timeout=WAIT_S)
    stage.more_ticks = False
    assert stage.ticks.acquire(timeout=WAIT_S)
    while stage.ticks.acquire(timeout=0.3):
        pass


def test_finish_runs_however_the_thread_ends(stage: Stage) -> None:
    """An error in a command ends the thread, and what it held is let go all the same."""
    raised = threading.Event()
    hook, threading.excepthook = threading.excepthook, lambda _: raised.set()
    try:
        stage.loop.post(lambda: 1 // 0)
        assert raised.wait(WAIT_S)
    finally:
        threading.excepthook = hook
    assert stage.events == ["begin", "finish"]


def test_end_may_come_twice_and_a_late_command_is_harmless(stage: Stage) -> None:
    """Closing again, or posting afterwards, does nothing."""
    stage.loop.end()
    stage.loop.end()
    stage.loop.post(lambda: stage.events.append("late"))
    assert stage.events == ["begin", "finish"]


def test_a_handed_command_has_run_on_return(stage: Stage) -> None:
    """Whoever hands a command over goes on only after the thread has run it."""
    names: list[str] = []
    stage.loop.hand(lambda: names.append(threading.current_thread().name), WAIT_S)
    assert names == ["loop-under-test"]


def test_handing_over_waits_no_longer_than_asked(stage: Stage) -> None:
    """A thread that is held up does not hold up its caller, and runs the command all the same."""
    gate, ran = threading.Event(), threading.Event()
    stage.loop.post(lambda: gate.wait(WAIT_S))
    stage.loop.hand(ran.set, 0.001)
    assert not ran.is_set()
    gate.set()
    assert ran.wait(WAIT_S)


def test_a_later_command_runs_once_however_often_it_was_asked_for(stage: Stage) -> None:
    """Asking twice before its time is asking once; afterwards it may be asked for again."""
    ran = threading.Semaphore(0)

    def later() -> None:
        ran.release()

    for _ in range(2):
        stage.run(lambda: [stage.loop.later(0.05, later) for _ in range(3)])
        assert ran.acquire(timeout=WAIT_S)
        assert not ran.acquire(timeout=0.2)


def test_a_number_that_is_used_again_is_another_member(stage: Stage) -> None:
    """Who has left gets no turn and takes nobody out, though its number is in use again."""
    former, turns = Pipe(), threading.Semaphore(0)

    class Successor:
        """A member with the number of one that has left."""

        fd = former.fd

        def turn(self) -> tuple[bool, bool]:
            """Count."""
            turns.release()
            return False, False

    successor = Successor()
    stage.run(lambda: (stage.loop.add(former), stage.loop.remove(former)))
    stage.run(lambda: stage.loop.add(successor))
    assert turns.acquire(timeout=WAIT_S)
    os.write(former.end, b"x")
    stage.run(lambda: (stage.loop.touch(former), stage.loop.remove(former)))
    stage.run(lambda: None)
    assert not former.turns.acquire(blocking=False)
    stage.run(lambda: stage.loop.touch(successor))
    assert turns.acquire(timeout=WAIT_S)
    stage.run(lambda: stage.loop.remove(successor))
    former.close()
