from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from libs.transfer.links.watch import ProcessWatch
from libs.transfer.ucx import Loop

WAIT_S = 5.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Return a running loop."""
    loop = Loop(
        "watch-test",
        begin=lambda: None,
        tick=lambda _: False,
        settle=lambda: None,
        finish=lambda: None,
    )
    loop.start()
    yield loop
    loop.end()


def watch(loop: Loop, pid: int, gone: threading.Event) -> ProcessWatch:
    """Begin to watch, on the loop's thread."""
    made: list[ProcessWatch] = []
    ready = threading.Event()

    def begin() -> None:
        made.append(ProcessWatch(loop, pid, gone.set))
        ready.set()

    loop.post(begin)
    assert ready.wait(WAIT_S)
    return made[0]


def end(loop: Loop, watching: ProcessWatch) -> None:
    """Stop watching, on the loop's thread."""
    done = threading.Event()
    loop.post(lambda: (watching.close(), done.set()))
    assert done.wait(WAIT_S)


def test_a_death_is_noticed(loop: Loop) -> None:
    """A living process is not reported; a killed one is."""
    gone = threading.Event()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watching = watch(loop, process.pid, gone)
    assert not gone.wait(0.1)
    process.kill()
    assert gone.wait(WAIT_S)
    process.communicate()
    end(loop, watching)


def test_a_process_that_is_gone_already_is_noticed(loop: Loop) -> None:
    """A peer that died before the watch began counts as dead."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone = threading.Event()
    end(loop, watch(loop, process.pid, gone))
    assert gone.is_set()
