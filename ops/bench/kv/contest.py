"""Who is measured, and how a round is counted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol, cast

from ops.bench.kv.shapes import Cell

__all__ = [
    "ROOT",
    "Contestant",
    "Partner",
    "Round",
    "Score",
    "Unavailable",
    "cpu_of",
    "program",
    "serve_orders",
    "waited_of",
]

ROOT = Path(__file__).parents[3]


class Unavailable(Exception):
    """A contestant cannot take part; the text says why."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of equal transfers."""

    seconds: float
    cpu_s: float
    """Of both processes."""
    moved: int
    """Bytes in all."""
    transfers: int
    waited_s: float = 0.0
    """How long threads of both processes were ready to run and others had the cores."""


@dataclass(slots=True)
class Score:
    """All rounds of one contestant in one cell."""

    rounds: list[Round] = field(default_factory=list[Round])
    problem: str = ""

    @property
    def gbps(self) -> float:
        """Median GB/s."""
        return median(one.moved / one.seconds / 1e9 for one in self.rounds)

    @property
    def microseconds(self) -> float:
        """Median time of one transfer."""
        return median(one.seconds / one.transfers * 1e6 for one in self.rounds)

    @property
    def waited(self) -> float:
        """Median microseconds of one transfer that were spent waiting for a core."""
        return median(one.waited_s / one.transfers * 1e6 for one in self.rounds)

    @property
    def cpu_per_gb(self) -> float:
        """Median CPU seconds per GB, both processes; 0 where nothing was moved."""
        return median(one.cpu_s / one.moved * 1e9 if one.moved else 0.0 for one in self.rounds)


class Contestant(Protocol):
    """Something that moves bytes from one process to another."""

    name: str

    def prepare(self, cell: Cell) -> None:
        """Make ready for a cell.

        Raises:
            Unavailable: it cannot move that.
        """
        ...

    def run(self, cell: Cell, transfers: int) -> Round:
        """Move the cell's bytes so many times, one after the other."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


class Partner:
    """A child process that answers orders, one JSON line each."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        mine, theirs = socket.socketpair()
        self._socket = mine
        self.process = subprocess.Popen(
            [*before, python, "-m", *arguments, "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        mine.settimeout(120)
        self._stream = mine.makefile("rw")

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def __call__(self, **order: Any) -> Any:
        """Give an order and return its answer.

        Raises:
            Unavailable: it says no, or it is gone.
        """
        try:
            self._stream.write(json.dumps(order) + "\n")
            self._stream.flush()
            line = self._stream.readline()
        except OSError as error:
            raise Unavailable(f"its process does not answer: {error}") from error
        if not line:
            raise Unavailable(f"its process ended with {self.process.wait(10)}")
        answer: Any = json.loads(line)
        if isinstance(answer, dict):
            problem: Any = cast("dict[str, Any]", answer).get("problem")
            if problem:
                raise Unavailable(str(problem))
        return cast("Any", answer)

    def pause(self) -> None:
        """Stop the process and its children until `resume`: some spin while they have no work."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError as error:
            raise Unavailable("its process is gone") from error

    def close(self) -> None:
        """End the process."""
        self._stream.close()
        self._socket.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def program(name: str) -> str:
    """Return where a program of the system is.

    Raises:
        Unavailable: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"there is no `{name}` here")
    return found


def serve_orders(fd: int, obey: Callable[[dict[str, Any]], Any]) -> None:
    """Be the process behind a `Partner`: answer its orders until the line closes."""
    stream = socket.socket(fileno=fd).makefile("rw")
    for line in stream:
        stream.write(json.dumps(obey(json.loads(line))) + "\n")
        stream.flush()


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used."""
    return _scheduled(pid, 0)


def waited_of(pid: int) -> float:
    """Return the seconds that all threads of a process were ready and had no core."""
    return _scheduled(pid, 1)


def _scheduled(pid: int, place: int) -> float:
    """Return the sum of one number of the kernel's over all threads of a process, in seconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[place])
        except OSError:
            continue
    return total / 1e9
