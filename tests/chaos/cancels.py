"""Random cancels in all phases, without faults: `python -m tests.chaos.cancels --count 2000`.

Measures the time from the client's leaving until the KV of both sides is free.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from libs.bus import BusError
from proto import subjects
from proto.control import Inventory, InventoryRequest
from proto.events import EventKind
from proto.ids import RequestId
from proto.ledger import RequestRecord
from tests.chaos.judge.clients import outcome_of
from tests.chaos.judge.figures import Spread, freed_after_ms
from tests.chaos.load import Ask, Load, Manner, Mix, Told
from tests.chaos.loop import run_loop
from tests.chaos.run import environment, rest
from tests.chaos.world.stack import Size, open_stack
from tests.chaos.world.watcher import Watcher, open_watcher

__all__ = ["BOUNDS_S", "Cancels", "cancels", "render"]

BOUNDS_S = {"before the first token": 1.0, "after the first token": 2.0}
"""Goals for the 99th percentile."""
_AT_ONCE = 16
_DEADLINE_S = 30.0
_REST_S = 45.0
_STALL = [
    {"when": "transfer", "action": "stall", "seconds": 0.3, "probability": 0.3},
    {"when": "prefill", "action": "stall", "seconds": 0.3, "probability": 0.2},
]


@dataclass
class Cancels:
    """What came of it."""

    outcomes: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    freed: dict[str, Spread] = field(default_factory=dict)
    slowest: list[str] = field(default_factory=list)
    nothing_held: int = 0
    """Cancels at whose moment no side held anything: queued, or just over."""
    leaked: int = 0
    """KV tokens and leases that are held at rest."""
    running: list[str] = field(default_factory=list)
    """Requests that ran on, or have no terminal state."""

    @property
    def misses(self) -> list[str]:
        """What is over its goal."""
        late = [
            f"{phase}: {self.freed[phase]}"
            for phase, bound in BOUNDS_S.items()
            if phase in self.freed and self.freed[phase].p99 > bound
        ]
        leaked = [f"{self.leaked} tokens and leases are held at rest"] if self.leaked else []
        return late + leaked + self.running


async def cancels(folder: Path, count: int, seed: int) -> Cancels:
    """Let so many clients leave, each at a random moment."""
    env = environment(_STALL, deadline_s=_DEADLINE_S)
    async with (
        open_stack(folder, Size(router=1, gateway=1), env=env, routed=()) as stack,
        open_watcher(stack.nats_url) as watcher,
    ):
        rng = random.Random(seed)
        mix = Mix(keyed=0.0, longest=300)
        load = Load(stack.gateway_ports, rng, patience_s=_DEADLINE_S + 10, mix=mix)
        left = iter(range(count))
        await asyncio.gather(*(_leave_often(load, rng, left) for _ in range(_AT_ONCE)))
        await rest(watcher, _REST_S)
        return await _judge(load.told, watcher)


async def _leave_often(load: Load, rng: random.Random, left: Iterator[int]) -> None:
    for _ in left:
        ask = load.draw()
        manner = Manner(0, leave="after", leave_s=rng.choice((0.02, 0.15, 0.6, 1.2)) * rng.random())
        if ask.stream and rng.random() < 0.4:
            manner = Manner(0, leave="token", leave_s=rng.uniform(0, 0.3))
        long = Ask(ask.number, ask.text, rng.randint(40, 200), ask.stream, ignore_eos=True)
        await load.submit(long, manner)


async def _judge(told: list[Told], watcher: Watcher) -> Cancels:
    found = Cancels(leaked=await _held(watcher))
    records = await watcher.records()
    events = defaultdict(list)
    for event in await watcher.stored_events():
        if event.rid is not None:
            events[event.rid].append(event)
    traces = {r.traceparent.split("-")[1]: rid for rid, r in records.items() if r.traceparent}
    late: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for one in told:
        found.outcomes[outcome_of(one)] += 1
        rid = RequestId(one.rid) if one.rid else traces.get(one.trace)
        if rid is None or one.left_ms is None:
            continue
        record = records[rid]
        found.records[str(record.state)] += 1
        if text := _ran_on(one, record):
            found.running.append(text)
        spent = freed_after_ms(one, events[rid])
        if spent is None:
            found.nothing_held += 1
            continue
        first = [e.at_ms for e in events[rid] if e.kind is EventKind.REQUEST_STREAMING]
        begun = bool(first) and min(first) <= one.left_ms
        phase = "after the first token" if begun else "before the first token"
        last = max(
            (e for e in events[rid] if e.kind is EventKind.LEASE_ENDED), key=lambda e: e.at_ms
        )
        late[phase].append((spent / 1000, f"{rid} {phase}: {last.data}"))
    for phase, values in late.items():
        spread = Spread.of(value for value, _ in values)
        if spread is not None:
            found.freed[phase] = spread
    slow = sorted((v for values in late.values() for v in values), reverse=True)[:5]
    found.slowest = [f"{value:.3f} s {text}" for value, text in slow]
    return found


def _ran_on(told: Told, record: RequestRecord) -> str | None:
    if not record.ended:
        return f"{record.rid}: still {record.state}"
    late_ms = (record.ended_ms or 0) - (told.left_ms or 0)
    if record.state == "done" and late_ms > 2_000:
        return f"{record.rid}: done {late_ms:.0f} ms after its client had left"
    return None


async def _held(watcher: Watcher) -> int:
    """Return what the workers hold, by their own inventories."""
    held = 0
    for beat in watcher.beats.values():
        if beat.load is None:
            continue
        subject = subjects.worker(beat.ref, "inventory")
        try:
            inventory = await watcher.bus.request(
                subject, InventoryRequest(), Inventory, timeout_s=5.0
            )
        except BusError as error:
            raise AssertionError(f"{beat.instance} gives no inventory: {error}") from error
        held += len(inventory.leases) + inventory.kv_used_tokens
    return held


def render(found: Cancels) -> str:
    """Return the figures as text."""
    lines = [
        f"submissions  {found.outcomes.total()}  {_row(found.outcomes)}",
        f"left, and    {_row(found.records)}; nothing was held of {found.nothing_held}",
    ]
    for phase, bound in BOUNDS_S.items():
        spread = found.freed.get(phase)
        lines.append(f"freed        {phase}: {spread}; goal p99 {bound:g} s")
    lines += [f"  {text}" for text in found.slowest]
    lines.append(f"leaked       {found.leaked}")
    lines += [f"missed       {text}" for text in found.misses]
    return "\n".join(lines)


def _row(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def main() -> int:
    """Run, print the figures, and return 1 if a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cancels", description=__doc__)
    parser.add_argument("--count", type=int, default=2_000, help="how many clients leave")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pdbus-cancels-"))
    print(f"seed {arguments.seed}, logs in {folder}", flush=True)
    found = run_loop(cancels(folder, arguments.count, arguments.seed))
    print(render(found))
    if arguments.json is not None:
        plain = msgspec.to_builtins(found, str_keys=True)
        arguments.json.write_text(json.dumps({"seed": arguments.seed} | plain, indent=2))
    return 1 if found.misses else 0


if __name__ == "__main__":
    sys.exit(main())
