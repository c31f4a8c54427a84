"""Many cancels at random moments: how soon both sides are free, and what is never freed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass, field
from functools import partial

from ops.bench.judge.pair import PAIR, Pair
from ops.bench.judge.phases import Subject, new_subject
from proto.errors import ErrorCode
from proto.host import JobFailed, JobFinished
from proto.workers import Role

__all__ = ["AFTER_BOUND_S", "BEFORE_BOUND_S", "Cancels", "cancel_many", "quantile"]

BEFORE_BOUND_S = 1.0
AFTER_BOUND_S = 2.0

_AT_ONCE = 4
_SHORTEST, _LONGEST = 20, 7000
_TOKENS = 400
_BLINK_S = 0.02
_PROMPT_TOKEN_S = 0.0005
"""About what a prompt token takes."""
_GAP_S = 0.05
_TOKENS_S = 30.0
_END_S = 10.0
_LOOK_S = 0.002


@dataclass(slots=True)
class Cancels:
    """What many cancels showed; times in seconds from the cancel until both sides had freed."""

    before: list[float] = field(default_factory=list[float])
    """Cancelled before the first token."""
    after: list[float] = field(default_factory=list[float])
    """Cancelled after it."""
    figures: list[float] = field(default_factory=list[float])
    """From the last cancel of a wave until the engines' own figures were zero."""
    too_late: int = 0
    """Requests that were over before their cancel."""
    leaked: int = 0
    """Tokens of KV held at the end, both sides."""
    rooms: int = 0
    """Rooms open at the end, both sides."""
    problems: list[str] = field(default_factory=list[str])

    @property
    def count(self) -> int:
        """Requests that were cancelled."""
        return len(self.before) + len(self.after)


async def cancel_many(pair: Pair, count: int, seed: int) -> Cancels:
    """Cancel requests in waves of one to four at random moments; look at the figures after each."""
    source = random.Random(seed)  # noqa: S311 - must repeat
    found = Cancels()
    while found.count < count and not found.problems:
        size = min(source.randint(1, _AT_ONCE), count - found.count)
        wave = [partial(_one, pair, random.Random(source.random()), found) for _ in range(size)]  # noqa: S311
        moments = await asyncio.gather(*(one() for one in wave))
        last = max(moments)
        free = await pair.free_after(last, PAIR, _END_S)
        if free is None:
            found.problems.append(f"held {_END_S:g} s after a cancel")
        else:
            found.figures.append(free)
    loads = [pair.load(role) for role in PAIR]
    found.leaked = sum(load.kv_used_tokens for load in loads)
    found.rooms = sum(load.open_rooms for load in loads)
    if problem := await pair.probe():
        found.problems.append(f"next request: {problem}")
    return found


async def _one(pair: Pair, source: random.Random, found: Cancels) -> float:
    """Run one request and cancel it; return when."""
    low, high = math.log(_SHORTEST), math.log(_LONGEST)
    subject = new_subject(pair, round(math.exp(source.uniform(low, high))), _TOKENS)
    subject.start(*PAIR)
    await _moment(subject, source)
    order = list(PAIR)
    source.shuffle(order)
    gap = source.uniform(0.0, _GAP_S)
    if subject.done(Role.DECODE):
        found.too_late += 1
        return time.monotonic()
    begin, first = time.monotonic(), subject.tokens > 0
    await subject.abort(order[0])
    await asyncio.sleep(gap)
    await subject.abort(order[1])
    ends = await subject.settle(_END_S)
    for role, end in ends.items():
        handed_over = role is Role.PREFILL and isinstance(end, JobFinished)
        if not (handed_over or (isinstance(end, JobFailed) and end.code is ErrorCode.CANCELLED)):
            found.problems.append(f"{role} of a cancelled request ended with {end}")
    taken = max(subject.ended.values(), default=begin) - begin
    (found.after if first else found.before).append(max(0.0, taken))
    return begin


async def _moment(subject: Subject, source: random.Random) -> None:
    """Wait until the moment to cancel: at once, while it is computed, or while it answers."""
    match source.choice(("blink", "prompt", "answer", "answer")):
        case "blink":
            await asyncio.sleep(source.uniform(0.0, _BLINK_S))
        case "prompt":
            await asyncio.sleep(source.uniform(0.0, _PROMPT_TOKEN_S * len(subject.ids)))
        case _:
            tokens = source.randint(1, _TOKENS // 4)
            async with asyncio.timeout(_TOKENS_S):
                while True:
                    if subject.tokens >= tokens or subject.done(Role.DECODE):
                        return
                    await asyncio.sleep(_LOOK_S)


def quantile(values: list[float], share: float) -> float:
    """Return the smallest value that `share` of all do not exceed; 0 of none."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)] if ranked else 0.0
