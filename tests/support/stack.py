"""A whole stack of real processes for end-to-end tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ops.cli.stack.record import SlotRecord, SlotState, StackRecord, StackState, holder, load

__all__ = ["RunningStack", "StackFailed", "run_stack", "start_stack"]

POLL_S = 0.02
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

_ROOT = Path(__file__).resolve().parents[2]


class StackFailed(AssertionError):
    """The stack did not do what the test needs; the text carries its last words."""


class RunningStack:
    """A stack that is ready, and what a test may do to it."""

    def __init__(self, state_dir: Path, supervisor: subprocess.Popen[bytes]) -> None:
        self.state_dir = state_dir
        self.supervisor = supervisor

    @property
    def record(self) -> StackRecord:
        """What the supervisor knows now."""
        record = load(self.state_dir)
        if record is None or record.supervisor != self.supervisor.pid:
            raise StackFailed(f"no record yet; {self.last_words()}")
        return record

    @property
    def url(self) -> str:
        """Base address of the first gateway."""
        return self.record.urls[0]

    @property
    def port(self) -> int:
        """Port of the first gateway on 127.0.0.1."""
        return int(self.url.rpartition(":")[2])

    def slot(self, name: str) -> SlotRecord:
        """Return what is known of one process."""
        return self.record.slot(name)

    def pid(self, name: str) -> int:
        """Return the process id of one living process."""
        pid = self.slot(name).pid
        if pid is None:
            raise StackFailed(f"{name} does not run; {self.last_words()}")
        return pid

    def pids(self) -> dict[str, int | None]:
        """Return the process ids of all slots."""
        return {slot.name: slot.pid for slot in self.record.slots}

    def kill(self, name: str) -> int:
        """Kill one process with SIGKILL and return its process id."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextmanager
    def unattended(self) -> Iterator[None]:
        """Have nothing started in place of what ends, for a while."""
        self.supervisor.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.supervisor.send_signal(signal.SIGCONT)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every process is ready."""
        self._until(
            lambda record: (
                record.state is StackState.READY
                and all(slot.state is SlotState.READY for slot in record.slots)
            ),
            timeout_s,
            "not ready",
        )

    def wait_replaced(self, name: str, pid: int, timeout_s: float = 10.0) -> None:
        """Wait until one slot has a ready process that is not `pid`."""

        def replaced(record: StackRecord) -> bool:
            slot = record.slot(name)
            return slot.pid not in {None, pid} and slot.state is SlotState.READY

        self._until(replaced, timeout_s, f"{name} was not replaced")

    def stop(self) -> None:
        """End the stack in order; whatever is left is a failure."""
        if self.supervisor.poll() is None:
            self.supervisor.send_signal(signal.SIGTERM)
        try:
            self.supervisor.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()
            self.supervisor.wait()
            raise StackFailed(f"the stack did not end; {self.last_words()}") from None

    def last_words(self, lines: int = 5) -> str:
        """Return the ends of all logs, for the report of a failed test."""
        parts: list[str] = []
        for log in sorted((self.state_dir / "logs").glob("*.log")):
            text = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {log.name}\n" + "\n".join(text))
        return "\n".join(parts)

    def _until(self, done: Callable[[StackRecord], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.supervisor.poll() is not None:
                raise StackFailed(f"the supervisor ended; {self.last_words()}")
            record = load(self.state_dir)
            mine = record is not None and record.supervisor == self.supervisor.pid
            if record is not None and mine and done(record):
                return
            time.sleep(POLL_S)
        raise StackFailed(f"{what} after {timeout_s:g} s: {self.pids()}\n{self.last_words()}")


def start_stack(
    state_dir: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    program: str = "ops.cli",
    engine: str = "scripted",
) -> RunningStack:
    """Start `pdbus up` on free ports, and do not wait for it.

    Args:
        state_dir: an empty folder.
        arguments: further options of `pdbus up`, such as `--prefill=2`.
        env: variables for all processes, such as `PDBUS_DECODE_SLOTS`.
        program: the module to run; it takes the arguments of `pdbus`.
        engine: what runs the model.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        program,
        "up",
        f"--engine={engine}",
        "--port=0",
        f"--state-dir={state_dir}",
        *arguments,
    ]
    with (state_dir / "supervisor.log").open("wb") as output:
        supervisor = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(env or {})},
        )
    return RunningStack(state_dir, supervisor)


@contextmanager
def run_stack(
    state_dir: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    engine: str = "scripted",
    ready_s: float = READY_TIMEOUT_S,
) -> Iterator[RunningStack]:
    """Run `pdbus up` on free ports for the length of the context.

    The arguments are those of `start_stack`; `ready_s` bounds the time until all are ready.
    """
    stack = start_stack(state_dir, *arguments, env=env, engine=engine)
    try:
        stack.wait_ready(ready_s)
        yield stack
    finally:
        stack.stop()
        assert holder(state_dir) is None
