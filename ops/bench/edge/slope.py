"""What one token costs, and what one request: the slope and the foot of the line through two loads.

    python -m ops.bench.edge.slope [--step-ms 5.75] [--streams 32] [--tokens 16 384] [--repeats 3]

Answers of two lengths are asked for in turns, so many at a time, and the CPU time of each part of
the stack is taken apart: what grows with the length is the tokens' share, what is left the
request's. With one stream the token's share is that of a whole step of the engine, with many it is
divided among those who share the step.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from ops.bench.edge.client import drive
from ops.bench.edge.target import Target, cpu_seconds, stack

__all__ = ["Slope", "main", "slope_of"]

_WARM_TOKENS = 64
_ROUNDS = 2
"""Answers a stream, one after the other, in each load."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Microseconds of CPU, by part of the stack."""

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


async def _spent(target: Target, streams: int, tokens: int) -> dict[str, float]:
    requests = streams * _ROUNDS
    before = cpu_seconds(target)
    load = await drive(target.port, target.model, streams=streams, tokens=tokens, requests=requests)
    after = cpu_seconds(target)
    if load.failures:
        raise RuntimeError(load.failures[0])
    return {part: (after[part] - before[part]) / requests * 1e6 for part in after}


async def _measure(
    folder: Path, step_ms: float, streams: int, lengths: tuple[int, int], repeats: int
) -> list[Slope]:
    with stack(folder, step_ms) as target:
        await _spent(target, streams, _WARM_TOKENS)
        found: list[Slope] = []
        for _ in range(repeats):
            less = await _spent(target, streams, lengths[0])
            more = await _spent(target, streams, lengths[1])
            found.append(slope_of(lengths, (less, more)))
        return found


def _line(what: str, each: Sequence[Mapping[str, float]]) -> str:
    middle = {part: median(one[part] for one in each) for part in each[0]}
    parts = ", ".join(f"{part} {value:.1f}" for part, value in middle.items())
    return f"us a {what:8} {sum(middle.values()):8.1f}  ({parts})"


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
    print(_line("token", [one.token for one in found]))
    print(_line("request", [one.request for one in found]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
