"""Starting and stopping a stack: here, or in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ops
from ops.cli.errors import CommandError
from ops.cli.stack.layout import StackOptions
from ops.cli.stack.record import StackRecord, StackState, holder, load, running_stack
from ops.cli.stack.serve import READY_TIMEOUT_S, serve
from ops.cli.views.display import Display

__all__ = ["bring_down", "bring_up", "bring_up_detached"]

POLL_S = 0.05
DOWN_TIMEOUT_S = 60.0

_ROOT = Path(ops.__file__).resolve().parent.parent


async def bring_up(options: StackOptions, display: Display) -> None:
    """Run a stack in this process until it is told to stop."""

    async def when_ready(record: StackRecord) -> bool:
        display.settle()
        display.say(f"ready: {' '.join(record.urls)}  (Ctrl-C stops)")
        return True

    await serve(options, display, when_ready)


def bring_up_detached(options: StackOptions, arguments: Sequence[str], display: Display) -> None:
    """Start the supervisor in the background and return when its stack is ready.

    Args:
        options: where the stack lives.
        arguments: of `pdbus up`, without `--detach`.
        display: shows the progress.

    Raises:
        CommandError: it did not get ready; nothing is left running.
    """
    if (pid := holder(options.state_dir)) is not None:
        message = f"a stack runs in {options.state_dir} already (process {pid})"
        raise CommandError(message)
    options.log_dir.mkdir(parents=True, exist_ok=True)
    log = options.log_dir / "supervisor.log"
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "up", *arguments],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _follow(child, options, display)
    except BaseException:
        child.terminate()
        child.wait()
        raise


def bring_down(state_dir: Path, display: Display) -> None:
    """Stop the stack of a state folder and wait until nothing of it is left.

    Raises:
        CommandError: none runs there, or it does not end.
    """
    record = running_stack(state_dir)
    pid = record.supervisor
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while holder(state_dir) == pid:
        if time.monotonic() > deadline:
            message = f"the stack in {state_dir} (process {pid}) did not end"
            raise CommandError(message)
        time.sleep(POLL_S)
    display.say("stopped")


def _follow(child: subprocess.Popen[bytes], options: StackOptions, display: Display) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        code = child.poll()
        record = load(options.state_dir)
        mine = record is not None and record.supervisor == child.pid
        if code is not None:
            reason = record.error if record is not None and mine else ""
            message = reason or f"the stack ended with exit code {code}; see {options.log_dir}"
            raise CommandError(message)
        if record is not None and mine:
            display.show(record)
            if record.state is StackState.READY:
                display.settle()
                display.say(f"ready: {' '.join(record.urls)}  (pdbus down stops)")
                return
        time.sleep(POLL_S)
    message = f"the stack was not ready after {READY_TIMEOUT_S:.0f} s; see {options.log_dir}"
    raise CommandError(message)
