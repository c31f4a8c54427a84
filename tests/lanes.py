"""Runs the whole suite in two lanes at once: most tests of whole stacks, and everything else.

Tests of real processes wait most of the time, so that two lanes take little more than half as long
as one. Each lane is one pytest of its own, which goes through its tests one after the other.
Arguments are passed to both, with the lane's name for `{lane}`:
`python -m tests.lanes --junitxml=report-{lane}.xml`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ended", "Lane", "lanes", "main", "verdict"]

STACKS = ("cases", "e2e")
"""The folders of the first lane: they take about as long as all others together."""

_FOLDER = Path(__file__).resolve().parent
_ROOT = _FOLDER.parent
_NOTHING_COLLECTED = 5
_LONGEST_LINE = 64 << 20
"""Bytes; what a failed comparison shows may be one line."""
_REPORT = b"=" * 8
"""How the headings of pytest's report begin."""
_FIRST_HEADING = b"test session starts"


@dataclass(frozen=True, slots=True)
class Lane:
    """Some folders of tests."""

    name: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """What one lane came to."""

    lane: Lane
    code: int
    seconds: float
    last: str
    """The last line that pytest wrote."""


def lanes(folder: Path = _FOLDER) -> tuple[Lane, Lane]:
    """Return the lanes; together they have every folder that holds tests, each once."""
    tested = {path.relative_to(folder).parts[0] for path in folder.rglob("test_*.py")}
    rest = sorted(tested - set(STACKS))
    return (
        Lane("stacks", tuple(f"tests/{name}" for name in STACKS)),
        Lane("rest", tuple(f"tests/{name}" for name in rest)),
    )


def verdict(codes: Sequence[int]) -> int:
    """Return the exit code of all: the worst; a lane in which nothing was asked for is none."""
    found = [code for code in codes if code != _NOTHING_COLLECTED]
    return max((abs(code) for code in found), default=_NOTHING_COLLECTED)


async def _run(lane: Lane, arguments: Sequence[str], running: list[Process]) -> Ended:
    began = time.monotonic()
    given = [argument.replace("{lane}", lane.name) for argument in arguments]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", *given, *lane.paths),
        cwd=_ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        limit=_LONGEST_LINE,
    )
    running.append(process)
    last = await _tell(lane, process)
    return Ended(lane, await process.wait(), time.monotonic() - began, last)


async def _tell(lane: Lane, process: Process) -> str:
    """Show progress line by line, and the report at the end in one piece; return its last line."""
    assert process.stdout is not None
    mark = f"{lane.name:>6} | ".encode()
    report: list[bytes] = []
    last = line = b""
    while line := await process.stdout.readline():
        last = line.strip(b"= \n") or last
        if report or (line.startswith(_REPORT) and _FIRST_HEADING not in line):
            report.append(line)
        else:
            _write(mark + line)
    _write(b"\n" + mark + b"its report\n" + b"".join(report) + b"\n")
    return last.decode(errors="replace")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


async def _all(arguments: Sequence[str]) -> int:
    running: list[Process] = []

    def end() -> None:
        for process in running:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)

    loop = asyncio.get_running_loop()
    # A terminal tells all processes of Ctrl-C by itself; each lane ends in order then.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, end)
    ended = await asyncio.gather(*(_run(lane, arguments, running) for lane in lanes()))
    print()
    for one in ended:
        print(f"{one.lane.name:>6} | exit {one.code} after {one.seconds:.0f} s: {one.last}")
    return verdict([one.code for one in ended])


def main() -> int:
    """Run both lanes; return the exit code."""
    return asyncio.run(_all(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
