"""Steady load without faults: `python -m tests.chaos.soak --minutes 20`.

Samples memory, files, threads, subscriptions, streams' consumers and what each process exports,
and prints how each of them grows. A part of the clients leaves, resubmits or reads slowly, because
what leaks is mostly left behind by those.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from tests.chaos.load import Load, Mix
from tests.chaos.loop import run_loop
from tests.chaos.run import environment, rest
from tests.chaos.world.stack import WORKERS, ChaosStack, Size, open_stack
from tests.chaos.world.watcher import open_watcher
from tests.support.http_client import get

__all__ = ["Soak", "render", "soak"]

_EVERY_S = 5.0
_DEADLINE_S = 30.0
_REST_S = 60.0
_WARM_SHARE = 0.25
"""What a process takes in the first part of a run, it keeps: pools, caches, code."""
_MB = 1 << 20

Sample = dict[str, float]


@dataclass
class Soak:
    """What was sampled."""

    times: list[float] = field(default_factory=list)
    """Seconds since the begin of the load."""
    series: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By `<slot> <what>`, one value a sample; NaN where there is none."""
    submissions: int = 0
    answered: int = 0
    at_rest: Sample = field(default_factory=dict)
    """The last values, when nothing runs any more."""

    def add(self, at_s: float, sample: Sample) -> None:
        """Take in the values of one moment."""
        for name in sample.keys() - self.series.keys():
            self.series[name] = [float("nan")] * len(self.times)
        self.times.append(at_s)
        for name, values in self.series.items():
            values.append(sample.get(name, float("nan")))

    def slopes(self) -> dict[str, tuple[float, float, float]]:
        """Return the first and last value of each series after the warm-up, and its hourly slope.

        The slope is Theil and Sen's median of all pairs, which single peaks do not move.
        """
        times = np.asarray(self.times)
        late = times >= times[-1] * _WARM_SHARE
        found: dict[str, tuple[float, float, float]] = {}
        for name, values in sorted(self.series.items()):
            series = np.asarray(values)
            kept = late & ~np.isnan(series)
            if kept.sum() >= 3:
                when, what = times[kept], series[kept]
                found[name] = (what[0], what[-1], _slope(when, what) * 3600)
        return found


def _slope(times: np.ndarray, values: np.ndarray) -> float:
    first, second = np.triu_indices(len(times), k=1)
    return float(np.median((values[second] - values[first]) / (times[second] - times[first])))


async def soak(folder: Path, minutes: float, seed: int, clients: int) -> Soak:
    """Put a stack under steady load and sample it."""
    found = Soak()
    async with (
        open_stack(folder, Size(), env=environment(deadline_s=_DEADLINE_S), routed=()) as stack,
        open_watcher(stack.nats_url) as watcher,
    ):
        mix = Mix(leave=0.1, keyed=0.1, slow=0.03, stuck=0.0, longest=200)
        load = Load(stack.gateway_ports, random.Random(seed), patience_s=_DEADLINE_S + 10, mix=mix)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(clients))
            async for at_s in _ticks(minutes * 60):
                found.add(at_s, await _sample(stack))
                _forget(load, found)
                watcher.heard.clear()
                watcher.listed.clear()
            load.stop()
        _forget(load, found)
        await rest(watcher, _REST_S)
        found.at_rest = await _sample(stack)
    return found


async def _ticks(seconds: float) -> AsyncIterator[float]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    while (at_s := loop.time() - began) < seconds:
        yield at_s
        await asyncio.sleep(_EVERY_S)


def _forget(load: Load, found: Soak) -> None:
    """Count what has ended, so that this process does not grow either."""
    ended = [told for told in load.told if told.ended_ms]
    load.told = [told for told in load.told if not told.ended_ms]
    found.submissions += len(ended)
    found.answered += sum(told.reply.claims_completeness for told in ended)


# Samples


async def _sample(stack: ChaosStack) -> Sample:
    sample: Sample = {}
    slots = stack.record.slots
    for slot in slots:
        if slot.pid is not None:
            sample |= _of_process(slot.name, slot.pid)
        if slot.role in WORKERS and (host := stack.host(slot.name)) is not None:
            sample |= _of_process(f"{slot.name} engine", host)
    services = [slot for slot in slots if slot.role != "nats"]
    pages = await asyncio.gather(*(_metrics(slot.health_port) for slot in services))
    for slot, page in zip(services, pages, strict=True):
        sample |= {f"{slot.name} {name}": value for name, value in page.items()}
    return sample | await _of_server(stack)


def _of_process(name: str, pid: int) -> Sample:
    process = psutil.Process(pid)
    with process.oneshot():
        return {
            f"{name} RSS MB": process.memory_info().rss / _MB,
            f"{name} fds": process.num_fds(),
            f"{name} threads": process.num_threads(),
        }


_EXPORTED = {
    "pdbus_tasks": "tasks",
    "pdbus_worker_tombstones": "tombstones",
    "pdbus_gateway_inflight_requests": "in flight",
}
"""Gauges of the services, as far as they export them."""


async def _metrics(port: int) -> Sample:
    page = await get(port, "/metrics")
    found: Sample = {}
    for line in page.body.decode().splitlines():
        name, _, value = line.rpartition(" ")
        bare = name.partition("{")[0]
        if bare in _EXPORTED:
            found[_EXPORTED[bare]] = float(value)
    return found


async def _of_server(stack: ChaosStack) -> Sample:
    connz = (await get(stack.monitor_port, "/connz?subs=1&limit=1024")).json
    jsz = (await get(stack.monitor_port, "/jsz?streams=1&consumers=1")).json
    names = stack.instances()
    sample: Sample = {"nats-0 connections": connz["num_connections"]}
    for connection in connz["connections"]:
        parts = str(connection.get("name", "")).split("/")
        slot = names.get(parts[1]) if len(parts) > 1 else None
        if slot is not None:
            sample[f"{slot} subscriptions"] = connection["subscriptions"]
            sample[f"{slot} pending bytes"] = connection["pending_bytes"]
    for stream in _streams(jsz):
        state = stream["state"]
        sample[f"{stream['name']} consumers"] = state["consumer_count"]
        sample[f"{stream['name']} messages"] = state["messages"]
    return sample


def _streams(jsz: dict[str, Any]) -> Sequence[dict[str, Any]]:
    details = jsz.get("account_details") or [{}]
    return details[0].get("stream_detail") or []


def render(found: Soak) -> str:
    """Return the slopes as a table."""
    minutes = found.times[-1] / 60
    share = found.answered / max(1, found.submissions)
    lines = [
        f"submissions  {found.submissions} in {minutes:.1f} min, answered {share:.0%}",
        f"samples      {len(found.times)}; slopes from minute {minutes * _WARM_SHARE:.1f} on",
        f"{'':38}{'first':>10}{'last':>10}{'per hour':>12}{'at rest':>10}",
    ]
    for name, (first, last, slope) in found.slopes().items():
        rest_value = found.at_rest.get(name, float("nan"))
        lines.append(f"{name:38}{first:>10.1f}{last:>10.1f}{slope:>+12.2f}{rest_value:>10.1f}")
    return "\n".join(lines)


def main() -> int:
    """Run, and print the slopes."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all samples to this file too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pdbus-soak-"))
    print(f"seed {arguments.seed}, logs in {folder}", flush=True)
    found = run_loop(soak(folder, arguments.minutes, arguments.seed, arguments.clients))
    print(render(found))
    if arguments.json is not None:
        plain = msgspec.to_builtins(found, str_keys=True)
        arguments.json.write_text(json.dumps(plain, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
