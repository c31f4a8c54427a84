"""The cost of the whole system at its edge, with every step of the protocol on.

    python -m ops.bench.edge [--repeats 3] [--json FILE]

A stack of all services with the scripted engine is measured in turns with an engine that is asked
directly, so that a busy machine slows both: quote the ratios. CPU seconds count every process of
the stack, the engines and the message broker included. The engines of both compute nothing, and
those of the stack move KV all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import uvloop

from ops.bench.edge.floor import Floor, floors, messages
from ops.bench.edge.measure import (
    Cost,
    Start,
    first_token,
    freed_after_leaving,
    gateway_start,
    loaded,
    percentile,
)
from ops.bench.edge.target import MODEL, Target, direct, rss_mib, stack

__all__ = ["main"]

_STEP_MS = 5.75
_STREAMS, _TOKENS, _REQUESTS = 32, 128, 64
_FIRST_REQUESTS = 60
_LEAVES = 7
_TTFT_GOAL_MS = 2.0
_CPU_GOAL = 35.0
_RATIO_GOAL = 0.29
_START_GOAL_S = 2.0
_RSS_GOAL_MIB = 150.0
_FREED_GOAL_MS = 50.0
_P99 = 0.99


@dataclass(slots=True)
class Result:
    """All that was measured, by target."""

    first_ms: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    instant: dict[str, Cost] = field(default_factory=dict[str, Cost])
    paced: dict[str, Cost] = field(default_factory=dict[str, Cost])
    freed_ms: list[float] = field(default_factory=list[float])
    starts: list[Start] = field(default_factory=list[Start])
    floors: list[Floor] = field(default_factory=list[Floor])
    messages: dict[str, float] = field(default_factory=dict[str, float])
    """Through the broker for one answer of one token, by kind."""
    gateway_rss_mib: float = 0.0
    """After all load."""

    @property
    def added_ms(self) -> float:
        """What the system adds to the time to the first token, at the median."""
        return median(self.first_ms["pdbus"]) - median(self.first_ms["direct"])

    @property
    def ratio(self) -> float:
        """Throughput of the instant engine through the system, over that of the engine alone."""
        return _rate(self.instant["pdbus"]) / _rate(self.instant["direct"])


async def measure(folder: Path, repeats: int, result: Result) -> None:
    """Measure an engine that answers at once, then one with the pace of a real one."""
    with direct(folder, 0.0) as alone, stack(folder, 0.0) as whole:
        for turn in range(repeats):
            for target in _turns(alone, whole, turn):
                times = await first_token(target, _FIRST_REQUESTS)
                result.first_ms.setdefault(target.name, []).extend(times)
            for target in _turns(alone, whole, turn):
                await _load(target, result.instant)
            result.starts.append(await gateway_start(whole, folder / MODEL))
        result.gateway_rss_mib = rss_mib(whole.groups["gateway"][0])
        result.messages = await messages(whole, _FIRST_REQUESTS)
        result.floors = await floors()
    with direct(folder, _STEP_MS) as alone, stack(folder, _STEP_MS) as whole:
        for turn in range(repeats):
            for target in _turns(alone, whole, turn):
                await _load(target, result.paced)
        result.freed_ms = await freed_after_leaving(whole, _LEAVES)


async def _load(target: Target, costs: dict[str, Cost]) -> None:
    cost = costs.setdefault(target.name, Cost())
    await loaded(target, cost, streams=_STREAMS, tokens=_TOKENS, requests=_REQUESTS)


def _turns(one: Target, other: Target, turn: int) -> Sequence[Target]:
    return (one, other) if turn % 2 == 0 else (other, one)


def report(result: Result) -> list[str]:
    """Return the tables, with the goal beside each figure that has one."""
    paced, instant = result.paced, result.instant
    tokens_a_core = {name: 1e6 / cost.cpu for name, cost in instant.items()}
    start = median(start.ready_s for start in result.starts)
    lines = [
        "time to the first token, one request at a time, engine instant (ms)",
        *(
            f"  {name:8} p50 {median(times):7.2f}  p99 {percentile(times, _P99):7.2f}"
            for name, times in result.first_ms.items()
        ),
        _goal("  added, p50", result.added_ms, _TTFT_GOAL_MS, "ms"),
        "",
        f"{_STREAMS} streams of {_TOKENS} tokens, engine instant",
        *(f"  {name:8} {_rate(cost):9.0f} tokens/s" for name, cost in instant.items()),
        _goal("  ratio to direct", result.ratio, _RATIO_GOAL, "", most=False),
        *(f"  {name:8} {rate:9.0f} tokens a core second" for name, rate in tokens_a_core.items()),
        "",
        f"{_STREAMS} streams of {_TOKENS} tokens, {_STEP_MS} ms a step: CPU s per million tokens",
        *(f"  {name:8} {_parts(cost)}" for name, cost in paced.items()),
        _goal("  all processes", paced["pdbus"].cpu, _CPU_GOAL, "s"),
        f"  over direct: {paced['pdbus'].cpu / paced['direct'].cpu:.1f} x",
        *(
            f"  {name:8} {_rate(cost):9.0f} tokens/s, first token {median(cost.first_ms):.1f} ms"
            for name, cost in paced.items()
        ),
        "",
        _goal(
            "client leaves -> both sides free, p50", median(result.freed_ms), _FREED_GOAL_MS, "ms"
        ),
        f"  most {max(result.freed_ms):.1f} ms",
        _goal("gateway start until ready", start, _START_GOAL_S, "s"),
        f"  until it answers {median(start.alive_s for start in result.starts):.2f} s",
        _goal("gateway memory after load", result.gateway_rss_mib, _RSS_GOAL_MIB, "MiB"),
        f"  fresh {median(start.rss_mib for start in result.starts):.0f} MiB",
        "",
        *_broker(result),
    ]
    failures = [f for cost in (*paced.values(), *instant.values()) for f in cost.failures]
    return [*lines, *(f"failed: {failure}" for failure in failures[:5])]


def _broker(result: Result) -> list[str]:
    all_kinds = sum(result.messages.values())
    return [
        "the broker's floor, one exchange at a time: p50, CPU of the broker, CPU of both ends (us)",
        *(
            f"  {floor.what:18} {floor.p50_us:6.0f} {floor.server_us:6.0f} {floor.clients_us:6.0f}"
            for floor in result.floors
        ),
        f"messages a request of one token: {all_kinds:.1f}",
        *(f"  {number:5.1f}  {kind}" for kind, number in result.messages.items()),
    ]


def _rate(cost: Cost) -> float:
    return median(cost.tokens_a_second)


def _parts(cost: Cost) -> str:
    each = (f"{name} {median(values):.1f}" for name, values in cost.parts.items())
    return f"{cost.cpu:6.1f}  ({', '.join(each)})"


def _goal(what: str, value: float, goal: float, unit: str, *, most: bool = True) -> str:
    met = value <= goal if most else value > goal
    bound = "at most" if most else "over"
    return f"{what}: {value:.2f} {unit} ({bound} {goal:g}: {'met' if met else 'MISSED'})"


def main() -> int:
    """Measure, print the tables; 1 if a request failed."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.edge", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    result = Result()
    with tempfile.TemporaryDirectory(prefix="pdbus-edge-") as folder:
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        with runner:
            runner.run(measure(Path(folder), options.repeats, result))
    print("\n".join(report(result)))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(result), indent=1))
    costs = (*result.paced.values(), *result.instant.values())
    return 1 if any(cost.failures for cost in costs) else 0


if __name__ == "__main__":
    sys.exit(main())
