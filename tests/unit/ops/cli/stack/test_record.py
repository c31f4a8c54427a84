"""The record of a stack, and the lock of its folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.cli.errors import CommandError
from ops.cli.stack.record import (
    StackRecord,
    StackState,
    hold_lock,
    holder,
    load,
    running_stack,
    store,
)


def record(**changes: object) -> StackRecord:
    """Return a record of an empty stack."""
    fields: dict[str, object] = {
        "supervisor": os.getpid(),
        "state": StackState.READY,
        "nats_url": "nats://127.0.0.1:1",
        "urls": ("http://127.0.0.1:2",),
        "model": "tiny",
        "engine": "scripted",
        "started_ms": 0,
    }
    return StackRecord(**(fields | changes))  # type: ignore[arg-type]


def test_record_survives_the_file(tmp_path: Path) -> None:
    """What is stored is what is loaded, and no draft is left."""
    store(tmp_path, record())
    assert load(tmp_path) == record()
    assert [file.name for file in tmp_path.iterdir()] == ["stack.json"]


def test_second_owner_is_refused(tmp_path: Path) -> None:
    """A folder that is held cannot be taken again, and the refusal names the holder."""
    with hold_lock(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(CommandError, match=str(os.getpid())), hold_lock(tmp_path):
            pytest.fail("the folder was taken twice")
    assert holder(tmp_path) is None


def test_lock_of_a_killed_owner_is_free(tmp_path: Path) -> None:
    """A supervisor that was killed leaves its record and its lock file; neither counts."""
    script = (
        "import sys, time; from pathlib import Path; from ops.cli.stack.record import hold_lock\n"
        "with hold_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        store(tmp_path, record(supervisor=child.pid))
        assert running_stack(tmp_path).supervisor == child.pid
        child.send_signal(signal.SIGKILL)
    with pytest.raises(CommandError, match="no stack runs"):
        running_stack(tmp_path)
    with hold_lock(tmp_path):
        assert holder(tmp_path) == os.getpid()


def test_commands_say_how_to_start(tmp_path: Path) -> None:
    """Without a stack a command fails with one line that names the way out."""
    with pytest.raises(CommandError, match="pdbus up"):
        running_stack(tmp_path / "absent")
