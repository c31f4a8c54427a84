"""Bringing requests into a phase, and what is then done to their engines."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from libs.engine import EngineDead
from ops.bench.judge.pair import PAIR, Pair, token_ids
from ops.bench.rig import greedy, job_for, new_job, new_room_id
from proto.host import Job, JobFailed, JobFinished, JobKind, JobTokens
from proto.ids import JobId, Room
from proto.workers import Role

__all__ = [
    "Action",
    "End",
    "NotReachedError",
    "Phase",
    "Subject",
    "act",
    "half_move",
    "new_subject",
    "reach",
]

End = JobFinished | JobFailed | EngineDead

_P, _D = PAIR
_REACH_S = 20.0
_IDLE_S = 3.0
_LOOK_S = 0.005
_SETTLE_S = 0.15
"""Long enough for a figure to come that says otherwise."""
_HEARD_S = 0.05
"""Long enough for an abort to wait at the door of a stopped scheduler."""
_SHORT, _MIDDLE, _LONG = 300, 1500, 7000
_FEW, _MANY = 8, 400
_KINDS = {_P: JobKind.PREFILL, _D: JobKind.DECODE}
_SEEDS = itertools.count(1000)


class NotReachedError(Exception):
    """A request did not come into the phase."""


class Phase(StrEnum):
    """Where a request is."""

    PREFILL_WAITS = "prefill waits"
    """Only prefill knows it."""
    DECODE_WAITS = "decode waits"
    """Only decode knows it, and has given it pages."""
    QUEUED = "queued"
    """Both know it, and prefill computes another one."""
    PREFILLING = "prefilling"
    """Some of its chunks are computed."""
    TRANSFERRING = "transferring"
    """All is computed, some has moved; decode stands still until it is acted upon."""
    DECODING = "decoding"
    """Some tokens are out; prefill is done with it."""


class Action(Enum):
    """What is done to a pair: the sides that it strikes, and how."""

    ABORT_BOTH = ("abort both", (_P, _D), False, False)
    ABORT_PREFILL = ("abort prefill", (_P,), False, False)
    ABORT_DECODE = ("abort decode", (_D,), False, False)
    KILL_PREFILL = ("kill prefill", (_P,), True, False)
    KILL_DECODE = ("kill decode", (_D,), True, False)
    KILL_PREFILL_CHILD = ("kill prefill's scheduler", (_P,), True, True)
    KILL_DECODE_CHILD = ("kill decode's scheduler", (_D,), True, True)

    def __init__(self, label: str, struck: tuple[Role, ...], kills: bool, child: bool) -> None:  # noqa: FBT001 - members
        self.label = label
        self.struck = struck
        self.kills = kills
        self.child = child


@dataclass(slots=True)
class Subject:
    """A request under judgement: each side's job is started by hand."""

    pair: Pair
    job: JobId
    room: Room
    ids: list[int]
    most: int
    tokens: int = 0
    ends: dict[Role, asyncio.Task[End]] = field(default_factory=dict[Role, "asyncio.Task[End]"])
    ended: dict[Role, float] = field(default_factory=dict[Role, float])
    """When each side's job ended, monotonic."""

    def start(self, *roles: Role) -> None:
        """Tell sides."""
        source = self.pair.rig.ready[_P].address
        for role in roles:
            peer = source if role is _D else None
            job = job_for(_KINDS[role], self.ids, greedy(self.most), self.job, self.room, peer)
            work = self._drive(role, job)
            self.ends[role] = self.pair.tasks.spawn(work, name=f"{role} job")

    async def abort(self, role: Role) -> None:
        """Tell one side to stop."""
        await self.pair.rig.engines[role].abort(self.job)

    async def settle(self, limit_s: float) -> dict[Role, End | None]:
        """Return how each side that was told has ended; None is a job without an end."""
        await asyncio.wait(self.ends.values(), timeout=limit_s)
        return {role: end.result() if end.done() else None for role, end in self.ends.items()}

    def done(self, role: Role) -> bool:
        """Whether a side has ended."""
        return self.ends[role].done()

    async def _drive(self, role: Role, job: Job) -> End:
        end: End = EngineDead("no output")
        try:
            async for output in self.pair.rig.engines[role].run(job):
                if isinstance(output, JobTokens):
                    self.tokens += len(output.ids) // 4
                else:
                    end = output
        except EngineDead as error:
            end = error
        self.ended[role] = time.monotonic()
        return end


def new_subject(pair: Pair, tokens: int, most: int) -> Subject:
    """Return a request with a prompt that was never used."""
    return Subject(pair, new_job(), new_room_id(), token_ids(tokens, next(_SEEDS)), most)


async def reach(pair: Pair, phase: Phase) -> list[Subject]:
    """Start what it takes to have a request in a phase; all that was started is returned.

    Raises:
        NotReachedError: it did not come there in time.
    """
    # An older request must not be taken for this one in the figures.
    if await pair.free_after(time.monotonic(), PAIR, _IDLE_S) is None:
        raise NotReachedError("the engines are not idle")
    match phase:
        case Phase.PREFILL_WAITS:
            subject = new_subject(pair, _MIDDLE, _FEW)
            subject.start(_P)
            await _until(lambda: pair.load(_P).open_rooms == 1)
        case Phase.DECODE_WAITS:
            subject = new_subject(pair, _MIDDLE, _FEW)
            subject.start(_D)
            await _until(lambda: pair.load(_D).kv_used_tokens >= _MIDDLE)
        case Phase.QUEUED:
            return await _queue(pair)
        case Phase.PREFILLING:
            subject = new_subject(pair, _LONG, _FEW)
            subject.start(_P, _D)
            await _until(lambda: 0 < pair.load(_P).kv_used_tokens < _LONG)
        case Phase.TRANSFERRING:
            subject = new_subject(pair, _MIDDLE, _FEW)
            await half_move(pair, subject)
        case Phase.DECODING:
            subject = new_subject(pair, _SHORT, _MANY)
            subject.start(_P, _D)
            await _until(lambda: subject.tokens >= _FEW and subject.done(_P))
    return [subject]


async def act(pair: Pair, phase: Phase, action: Action, subjects: list[Subject]) -> float:
    """Do it; return when it was done first, monotonic."""
    begin = time.monotonic()
    for role in action.struck:
        if action.kills:
            pair.kill(role, child=action.child)
            continue
        for subject in subjects:
            await subject.abort(role)
    if phase is Phase.TRANSFERRING:
        if not action.kills:
            await asyncio.sleep(_HEARD_S)
        _resume(pair)
    return begin


async def _queue(pair: Pair) -> list[Subject]:
    before, subject = new_subject(pair, _LONG, _FEW), new_subject(pair, _MIDDLE, _FEW)
    before.start(_P, _D)
    await _until(lambda: pair.load(_P).kv_used_tokens > 0)
    subject.start(_P, _D)
    await _until(
        lambda: pair.load(_P).waiting > 0 and pair.load(_D).kv_used_tokens >= _LONG + _MIDDLE
    )
    return [before, subject]


async def half_move(pair: Pair, subject: Subject) -> None:
    """Start a request; return when some of it has moved, and decode's scheduler stands still.

    Raises:
        NotReachedError: it did not come there in time; decode goes on.
    """
    subject.start(_D)
    await _until(lambda: pair.load(_D).kv_used_tokens >= len(subject.ids))
    # Decode has granted its slabs: prefill fills them and must wait for more.
    os.kill(pair.scheduler(_D), signal.SIGSTOP)
    reached = False
    try:
        subject.start(_P)
        await _until(lambda: pair.load(_P).kv_used_tokens >= len(subject.ids))
        await asyncio.sleep(_SETTLE_S)
        reached = pair.load(_P).running > 0 and not subject.done(_P)
    finally:
        if not reached:
            _resume(pair)
    if not reached:
        raise NotReachedError("prefill has sent all of it to an engine that stands still")


def _resume(pair: Pair) -> None:
    try:
        os.kill(pair.scheduler(_D), signal.SIGCONT)
    except ProcessLookupError:
        return  # it was killed as it stood


async def _until(reached: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(_REACH_S):
            while True:
                # First of all the jobs have to leave for their engines.
                await asyncio.sleep(_LOOK_S)
                if reached():
                    return
    except TimeoutError as error:
        raise NotReachedError(f"not reached within {_REACH_S:g} s") from error
