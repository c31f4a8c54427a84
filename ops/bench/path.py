"""The cost of the split path: one prefill and one decode engine against one aggregated engine.

    python -m ops.bench.path [--model smollm2] [--starts 3] [--repeats 2] [--json FILE]

Both are driven in turns in the same run, so that a busy machine slows both; which one comes first
changes from turn to turn. The engines are started several times: where its memory comes to lie
makes an engine some per cent faster or slower for the whole of its life. Medians over all starts;
short prompts, where a millisecond counts, have more runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from libs.models import ModelFolder, resolve
from ops.bench.prompts import prompt
from ops.bench.rig import Answer, Rig, cpu_seconds, greedy, rig
from ops.bench.stack import idle_stack
from proto.host import JobFinished
from proto.workers import Role

__all__ = ["Cell", "Table", "main", "measure"]

_LENGTHS = (64, 512, 2048)
_TOKENS = 16
_SPLIT_HEAD = "split: first ms  token ms  cpu s"
_FULL_LENGTH = 512
"""Shorter prompts are run more often than asked for, in proportion."""
_ROLES = (Role.AGGREGATED, Role.PREFILL, Role.DECODE)
_PAIR = (Role.PREFILL, Role.DECODE)
_TTFT_GOAL = 1.1
_CPU_GOAL = 1.25
_IDLE_GOAL = 0.15
_IDLE_S = 10.0
_SETTLE_S = 2.0


@dataclass(slots=True)
class Cell:
    """All runs of one engine arrangement at one prompt length."""

    first_s: list[float] = field(default_factory=list[float])
    token_s: list[float] = field(default_factory=list[float])
    """Between two tokens."""
    cpu_s: list[float] = field(default_factory=list[float])
    moved: list[int] = field(default_factory=list[int])
    """Bytes of KV; empty where nothing moves."""

    def add(self, answer: Answer, cpu_s: float) -> None:
        """Add one run."""
        self.first_s.append(answer.first_s)
        self.token_s.append((answer.total_s - answer.first_s) / max(1, len(answer.ids) - 1))
        self.cpu_s.append(cpu_s)
        report = answer.last.transfer if isinstance(answer.last, JobFinished) else None
        if report is not None:
            self.moved.append(report.moved_bytes)


@dataclass(slots=True)
class Table:
    """The whole measurement."""

    aggregated: dict[int, Cell] = field(default_factory=dict[int, Cell])
    split: dict[int, Cell] = field(default_factory=dict[int, Cell])
    idle: list[float] = field(default_factory=list[float])
    """Cores that the pair of engines uses, all processes; one figure a start."""
    stack_cores: float | None = None
    """The pair with broker and all services; None where it was not measured."""
    start_s: list[float] = field(default_factory=list[float])
    lane: str = ""
    problems: list[str] = field(default_factory=list[str])

    @property
    def idle_cores(self) -> float:
        """Cores that an idle pair of engines uses."""
        return median(self.idle)


async def measure(
    model: ModelFolder, logs: Path, *, lengths: Sequence[int], starts: int, repeats: int
) -> Table:
    """Measure on fresh engines, as often as `starts` says."""
    table = Table()
    for length in lengths:
        table.aggregated[length], table.split[length] = Cell(), Cell()
    for _ in range(starts):
        async with rig(_ROLES, model, logs) as engines:
            await _measure(engines, model, table, repeats)
    return table


async def _measure(engines: Rig, model: ModelFolder, table: Table, repeats: int) -> None:
    table.start_s.append(engines.start_s)
    seed = 0
    for length in table.split:
        for turn in range(_runs(length, repeats) + 1):
            seed += 2
            cells = (table.aggregated[length], table.split[length]) if turn else None
            await _pair(engines, model, length, seed, cells, table, first=turn % 2)
    await asyncio.sleep(_SETTLE_S)
    table.idle.append(await _idle(engines.pids(*_PAIR)))


def _runs(length: int, repeats: int) -> int:
    return max(repeats, repeats * _FULL_LENGTH // length)


async def _pair(  # noqa: PLR0913 - one measurement
    engines: Rig,
    model: ModelFolder,
    length: int,
    seed: int,
    cells: tuple[Cell, Cell] | None,
    table: Table,
    *,
    first: int,
) -> None:
    """Run one prompt on each arrangement, one of them first; without cells it warms both up."""
    sampling = greedy(_TOKENS)

    one, other = (prompt(model.path, length, seed + more) for more in (0, 1))

    async def aggregated() -> Answer:
        return await engines.aggregated(one, sampling)

    async def split() -> Answer:
        return await engines.split(other, sampling)

    arrangements = ((aggregated, (Role.AGGREGATED,)), (split, _PAIR))
    for place in (first, 1 - first):
        run, roles = arrangements[place]
        answer, cpu = await _timed(run, engines.pids(*roles))
        if answer.failure:
            table.problems.append(answer.failure)
        elif cells is not None:
            cells[place].add(answer, cpu)
            if isinstance(answer.last, JobFinished) and answer.last.transfer is not None:
                table.lane = str(answer.last.transfer.lane)


async def _timed(run: Callable[[], Awaitable[Answer]], pids: Sequence[int]) -> tuple[Answer, float]:
    before = cpu_seconds(pids)
    answer = await run()
    return answer, cpu_seconds(pids) - before


async def _idle(pids: Sequence[int]) -> float:
    before, begin = cpu_seconds(pids), time.perf_counter()
    await asyncio.sleep(_IDLE_S)
    return (cpu_seconds(pids) - before) / (time.perf_counter() - begin)


def _print(table: Table, model: str) -> bool:
    good = not table.problems
    print(f"model {model}, {_TOKENS} tokens an answer, lane {table.lane}, medians")
    print(
        "prompt runs |   aggregated: first ms  token ms  cpu s |   split: first ms  token ms  cpu s"
    )
    for length, one in table.aggregated.items():
        two = table.split[length]
        if not one.first_s or not two.first_s:
            continue
        print(f"{length:6} {len(two.first_s):4} | {_numbers(one):>40} | {_numbers(two):>36}")
    print("prompt | first-token ratio (goal) | cpu ratio (goal) | MB moved")
    for length, one in table.aggregated.items():
        two = table.split[length]
        if not one.first_s or not two.first_s:
            continue
        first = median(two.first_s) / median(one.first_s)
        cpu = median(two.cpu_s) / median(one.cpu_s)
        moved = f"{median(two.moved) / 1e6:.1f}"
        print(f"{length:6} | {first:17.2f} ({_TTFT_GOAL}) | {cpu:9.2f} ({_CPU_GOAL}) | {moved:>8}")
        good = good and first <= _TTFT_GOAL and cpu <= _CPU_GOAL
    print(f"idle pair: {table.idle_cores:.3f} core")
    if table.stack_cores is not None:
        print(f"idle pair with all services: {table.stack_cores:.3f} core (goal {_IDLE_GOAL})")
    print(f"three engines ready after {median(table.start_s):.1f} s, {len(table.start_s)} starts")
    for problem in table.problems:
        print(f"failed: {problem}")
    return good and (table.stack_cores or table.idle_cores) <= _IDLE_GOAL


def _numbers(cell: Cell) -> str:
    first, token = median(cell.first_s) * 1e3, median(cell.token_s) * 1e3
    return f"{first:10.0f} {token:9.1f} {median(cell.cpu_s):6.2f}"


def main() -> None:
    """Measure, print the table, and exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="ops.bench.path")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--models", type=Path, default=Path(".pdbus/models"))
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2, help="runs a start, of 512 tokens and up")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(_LENGTHS))
    parser.add_argument("--no-stack", action="store_true", help="leave out the idle stack")
    parser.add_argument("--json", type=Path, help="also write all runs here")
    given = parser.parse_args()
    model = resolve(given.model, given.models, lambda text: print(text, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="pdbus-path-") as logs:
        table = asyncio.run(
            measure(
                model,
                Path(logs),
                lengths=given.lengths,
                starts=given.starts,
                repeats=given.repeats,
            )
        )
        if not given.no_stack:
            table.stack_cores = idle_stack(given.model, given.models, Path(logs) / "stack")
    if given.json is not None:
        given.json.write_text(json.dumps(asdict(table), indent=2))
    sys.exit(0 if _print(table, given.model) else 1)


if __name__ == "__main__":
    main()
