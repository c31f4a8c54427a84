"""Resubmission of keys over two gateways: `python -m tests.chaos.keys --count 1000`.

Each key is sent eight times at once. There must be one execution, and eight identical answers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from proto.events import Event, EventKind
from proto.ids import RequestId
from tests.chaos.judge.clients import outcome_of
from tests.chaos.load import Ask, Load, Manner, Mix, Told
from tests.chaos.loop import run_loop
from tests.chaos.run import environment, rest
from tests.chaos.world.oracle import Oracle
from tests.chaos.world.stack import ChaosStack, Size, open_stack
from tests.chaos.world.watcher import open_watcher

__all__ = ["Keys", "keys", "render"]

_WAYS = 8
_AT_ONCE = 2
_DEADLINE_S = 30.0
_REST_S = 45.0
_ONCE = (
    EventKind.REQUEST_ACCEPTED,
    EventKind.REQUEST_ASSIGNED,
    EventKind.STAGE_PREFILL,
    EventKind.STAGE_DECODE,
    EventKind.REQUEST_DONE,
)


@dataclass
class Keys:
    """What came of it."""

    keys: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    executions: Counter[int] = field(default_factory=Counter)
    """How many keys were computed how many times."""
    misses: list[str] = field(default_factory=list)


async def keys(folder: Path, count: int, seed: int) -> Keys:
    """Send so many keys, each eight times at once."""
    async with (
        open_stack(folder, Size(), env=environment(deadline_s=_DEADLINE_S), routed=()) as stack,
        open_watcher(stack.nats_url) as watcher,
    ):
        rng = random.Random(seed)
        patience_s = _DEADLINE_S + 10
        mix = Mix(keyed=1.0, longest=100)
        load = Load(stack.gateway_ports, rng, patience_s=patience_s, mix=mix)
        left = iter(range(count))

        async def send() -> None:
            for _ in left:
                await _eightfold(load, rng)

        await asyncio.gather(*(send() for _ in range(_AT_ONCE)))
        await rest(watcher, _REST_S)
        return _judge(stack, load.told, await watcher.stored_events())


async def _eightfold(load: Load, rng: random.Random) -> None:
    ask = load.draw()
    # At once, or some of them a little later, when it runs or is done already.
    spread_s = rng.choice((0.0, 0.0, 0.05, 0.5))
    manners = [Manner(n % 2, wait_s=rng.uniform(0, spread_s)) for n in range(_WAYS)]
    await asyncio.gather(*(load.submit(ask, manner) for manner in manners))


def _judge(stack: ChaosStack, told: list[Told], events: list[Event]) -> Keys:
    found = Keys()
    oracle = Oracle(stack.model_path)
    by_rid: dict[RequestId, list[Event]] = defaultdict(list)
    for event in events:
        if event.rid is not None:
            by_rid[event.rid].append(event)
    groups: dict[Ask, list[Told]] = defaultdict(list)
    for one in told:
        found.outcomes[outcome_of(one)] += 1
        groups[one.ask].append(one)
    found.keys = len(groups)
    for ask, group in groups.items():
        right = oracle.answer(ask.text, ask.max_tokens, ignore_eos=ask.ignore_eos)
        wrong = [one for one in group if one.reply.text != right.text]
        rids = {one.rid for one in group}
        if wrong or len(rids) != 1:
            seen = [(outcome_of(one), one.reply.error, one.rid) for one in group]
            found.misses.append(f"{ask.key}: {seen}")
            continue
        kinds = Counter(event.kind for event in by_rid[RequestId(rids.pop())])
        found.executions[kinds[EventKind.STAGE_DECODE]] += 1
        often = {str(kind): kinds[kind] for kind in _ONCE if kinds[kind] != 1}
        if often:
            found.misses.append(f"{ask.key}: not once: {often}")
    return found


def render(found: Keys) -> str:
    """Return the figures as text."""
    outcomes = ", ".join(f"{name} {count}" for name, count in found.outcomes.items())
    runs = ", ".join(f"{count} keys {times} times" for times, count in found.executions.items())
    lines = [
        f"keys         {found.keys}, {found.outcomes.total()} submissions: {outcomes}",
        f"executions   {runs}",
        f"missed       {len(found.misses)}",
    ]
    return "\n".join(lines + [f"  {text}" for text in found.misses[:20]])


def main() -> int:
    """Run, print the figures, and return 1 if a key was computed more than once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.keys", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000, help="how many keys")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pdbus-keys-"))
    print(f"seed {arguments.seed}, logs in {folder}", flush=True)
    found = run_loop(keys(folder, arguments.count, arguments.seed))
    print(render(found))
    return 1 if found.misses else 0


if __name__ == "__main__":
    sys.exit(main())
