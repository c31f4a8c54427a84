"""What one token costs, and what one request: the slope and the foot of the line through two loads.

    python -m ops.bench.edge.slope [--step-ms 5.75] [--streams 32] [--tokens 16 384] [--repeats 3]

Answers of two lengths are asked for in turns, so many at a time, and the CPU time of each part of
the stack is taken apart: what grows with the length is the tokens' share, what is left the
request's. With one stream the token's share is that of a whole step of the engine, with many it is
divided among those who share the step.

Beside the CPU time (microseconds) stand the kernel's part of it, and how often the threads of a
part waited for something: each wait ends with a wake-up, after which a process finds its memory
cold. With one stream the price of such a wake-up shows: a step is then one token.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from ops.bench.edge.client import drive
from ops.bench.edge.target import Target, kernel_seconds, sleeps, stack, thread_seconds

__all__ = ["Slope", "main", "slope_of", "table_of"]

Costs = dict[str, dict[str, float]]
"""By kind, then by part of the stack."""

_CPU, _KERNEL, _SLEEPS = _KINDS = "CPU us", "kernel us", "waits"
_WARM_TOKENS = 64
_ROUNDS = 2
"""Answers a stream, one after the other, in each load."""


@dataclass(frozen=True, slots=True)
class Slope:
    """One kind of cost, by part of the stack."""

    token: Mapping[str, float]
    request: Mapping[str, float]


def slope_of(
    lengths: tuple[int, int], spent: tuple[Mapping[str, float], Mapping[str, float]]
) -> Slope:
    """Return the line through two loads.

    Args:
        lengths: tokens of an answer, the shorter first.
        spent: microseconds a request, for each length.
    """
    (short, long), (less, more) = lengths, spent
    token = {part: (more[part] - less[part]) / (long - short) for part in less}
    return Slope(token, {part: less[part] - token[part] * short for part in less})


async def _spent(target: Target, streams: int, tokens: int) -> Costs:
    """Return what a request has cost each part, by kind of cost."""
    requests = streams * _ROUNDS
    before = _read(target)
    load = await drive(target.port, target.model, streams=streams, tokens=tokens, requests=requests)
    after = _read(target)
    if load.failures:
        raise RuntimeError(load.failures[0])
    return {
        kind: {part: (value - before[kind][part]) / requests for part, value in costs.items()}
        for kind, costs in after.items()
    }


def _read(target: Target) -> Costs:
    kinds: dict[str, Callable[[int], float]] = {
        _CPU: lambda pid: thread_seconds(pid) * 1e6,
        _KERNEL: lambda pid: kernel_seconds(pid) * 1e6,
        _SLEEPS: sleeps,
    }
    return {
        kind: {part: sum(map(read, pids)) for part, pids in target.groups.items()}
        for kind, read in kinds.items()
    }


async def _measure(
    folder: Path, step_ms: float, streams: int, lengths: tuple[int, int], repeats: int
) -> list[dict[str, Slope]]:
    with stack(folder, step_ms) as target:
        await _spent(target, streams, _WARM_TOKENS)
        found: list[dict[str, Slope]] = []
        for _ in range(repeats):
            less = await _spent(target, streams, lengths[0])
            more = await _spent(target, streams, lengths[1])
            found.append({kind: slope_of(lengths, (less[kind], more[kind])) for kind in less})
        return found


def table_of(found: Sequence[Mapping[str, Slope]]) -> list[str]:
    """Return the medians as lines, a part of the stack each."""
    heads = [f"{kind:>11}" for kind in _KINDS]
    lines = [f"{'':10}  {'a token':<34}a request", f"{'':10}{''.join(heads)} {''.join(heads)}"]
    parts = list(found[0][_CPU].token)
    sums = [0.0] * (2 * len(_KINDS))
    for part in parts:
        token = [median(one[kind].token[part] for one in found) for kind in _KINDS]
        request = [median(one[kind].request[part] for one in found) for kind in _KINDS]
        sums = [a + b for a, b in zip(sums, (*token, *request), strict=True)]
        lines.append(_line(part, (*token, *request)))
    return [*lines, _line("all", sums)]


def _line(part: str, values: Sequence[float]) -> str:
    token, request = values[: len(_KINDS)], values[len(_KINDS) :]
    cells = "".join(f"{value:11.2f}" for value in token), "".join(f"{v:11.1f}" for v in request)
    return f"{part:10}{cells[0]} {cells[1]}"


def main() -> int:
    """Measure and print both lines."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.edge.slope", description=__doc__)
    parser.add_argument("--step-ms", type=float, default=5.75)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, nargs=2, default=(16, 384))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    lengths = (min(options.tokens), max(options.tokens))
    if lengths[0] == lengths[1]:
        parser.error("--tokens: two lengths are needed")
    with tempfile.TemporaryDirectory(prefix="pdbus-slope-") as folder:
        measuring = _measure(
            Path(folder), options.step_ms, options.streams, lengths, options.repeats
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(measuring)
    print("\n".join(table_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
