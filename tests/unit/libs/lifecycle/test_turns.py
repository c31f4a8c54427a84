from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.lifecycle.turns import ask_for_short_turns, turn_of

_SCRIPT = """
import os, sys, threading
os.nice(5)
threading.Thread(target=sys.stdin.read, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of two threads that waits."""
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


@pytest.fixture
def known() -> None:
    """Skip where the kernel does not tell the length of turns."""
    if not turn_of(0):
        pytest.skip("this kernel does not tell the length of a thread's turns (Linux 6.12 does)")


@pytest.mark.usefixtures("known")
def test_all_threads_but_the_spared_have_short_turns(process: subprocess.Popen[bytes]) -> None:
    """A thread that computes has the kernel's turns, though it inherited short ones."""
    threads = [int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()]
    assert len(threads) == 2
    assert ask_for_short_turns([process.pid]) == 2
    short = {turn_of(thread) for thread in threads}
    assert len(short) == 1
    assert ask_for_short_turns([process.pid], spare={process.pid}) == 1
    (other,) = set(threads) - {process.pid}
    spared = turn_of(process.pid)
    assert spared is not None
    assert {turn_of(other)} == short
    assert spared > (turn_of(other) or 0) > 0


@pytest.mark.usefixtures("known")
def test_a_nice_value_stays(process: subprocess.Popen[bytes]) -> None:
    """Who lets others go first goes on doing so, with turns of either length."""
    nice = os.getpriority(os.PRIO_PROCESS, process.pid)
    assert nice == os.getpriority(os.PRIO_PROCESS, 0) + 5
    ask_for_short_turns([process.pid])
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == nice
    ask_for_short_turns([process.pid], spare={process.pid})
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == nice


def test_a_process_that_has_ended_is_passed_over(process: subprocess.Popen[bytes]) -> None:
    """Children may die at any time; that is told elsewhere."""
    process.kill()
    process.wait()
    assert ask_for_short_turns([process.pid]) == 0


def test_machines_whose_calls_are_not_known_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call by a wrong number would do something else."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert turn_of(threading.get_native_id()) is None
    assert ask_for_short_turns([os.getpid()]) == 0
