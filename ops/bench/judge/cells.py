"""The table of phases and actions, and the judgement of one cell."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from libs.engine import EngineDead
from ops.bench.judge.pair import PAIR, Pair
from ops.bench.judge.phases import Action, End, NotReachedError, Phase, Subject, act, reach
from proto.errors import ErrorCode
from proto.host import JobFailed
from proto.workers import Role

__all__ = ["ABORT_BOUND_S", "CELLS", "CRASH_BOUND_S", "Outcome", "judge_cell"]

ABORT_BOUND_S = 2.0
CRASH_BOUND_S = 5.0

FINISHED = "finished"
DEAD = "engine dead"
SILENT = "no end"

_P, _D = PAIR
_ANSWER_S = 30.0
"""Most time for an answer that goes on although something was done."""
_ALONE = {Phase.PREFILL_WAITS: _P, Phase.DECODE_WAITS: _D}
_LOST = {_P: ErrorCode.PREFILL_LOST, _D: ErrorCode.DECODE_LOST}
_OTHER = {_P: _D, _D: _P}

CELLS = tuple(
    (phase, action)
    for phase in Phase
    for action in Action
    # An abort told only to a side that does not know the request yet says nothing.
    if action.kills or phase not in _ALONE or _ALONE[phase] in action.struck
)


@dataclass(slots=True)
class Outcome:
    """What one cell showed."""

    phase: Phase
    action: Action
    bound_s: float
    ends: dict[str, str] = field(default_factory=dict[str, str])
    """What the caller of each side saw."""
    free_s: float | None = None
    """Until the survivors held nothing; counted from the answer's end if it went on."""
    went_on: bool = False
    moved: str = ""
    """Bytes moved of bytes expected, where a transfer was cut."""
    next: str = ""
    problems: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


async def judge_cell(pair: Pair, phase: Phase, action: Action) -> Outcome:
    """Bring a request into a phase, act, and look at what is left; the pair is whole again then.

    Raises:
        EngineDead: an engine did not start again.
    """
    outcome = Outcome(phase, action, CRASH_BOUND_S if action.kills else ABORT_BOUND_S)
    try:
        subjects = await reach(pair, phase)
    except NotReachedError as error:
        outcome.problems.append(f"phase not reached: {error}")
        await _renew(pair)
        return outcome
    begin = await act(pair, phase, action, subjects)
    survivors = [role for role in PAIR if not (action.kills and role in action.struck)]
    await _look_at_ends(outcome, subjects, survivors, begin)
    outcome.free_s = await _free(pair, outcome, subjects, survivors, begin)
    if outcome.free_s is None:
        held = {str(role): pair.load(role) for role in survivors}
        outcome.problems.append(f"still held after {outcome.bound_s:g} s: {held}")
    elif outcome.free_s > outcome.bound_s:
        outcome.problems.append(f"free after {outcome.free_s:.2f} s")
    if phase in _ALONE and _OTHER[_ALONE[phase]] in survivors:
        await _come_late(pair, outcome, subjects[0], survivors)
    await _next(pair, outcome)
    if outcome.problems:
        await _renew(pair)
    return outcome


async def _look_at_ends(
    outcome: Outcome, subjects: list[Subject], survivors: list[Role], begin: float
) -> None:
    """Wait for the ends that the callers see and compare them with those that are right."""
    subject = subjects[-1]
    outcome.went_on = outcome.phase is Phase.DECODING and _D not in outcome.action.struck
    patience = _ANSWER_S if outcome.went_on else outcome.bound_s + 1.0
    found = [await one.settle(patience) for one in subjects]
    for ends in found:
        for role, end in ends.items():
            seen = _word(end)
            outcome.ends[str(role)] = seen
            right = _right(outcome, role)
            if seen not in right:
                outcome.problems.append(f"{role} ended with {seen}, not {' or '.join(right)}")
            if isinstance(end, JobFailed) and end.transfer and end.transfer.moved_bytes:
                outcome.moved = f"{end.transfer.moved_bytes}/{end.transfer.expected_bytes}"
    if outcome.went_on and subject.tokens != subject.most:
        outcome.problems.append(f"{subject.tokens} of {subject.most} tokens came")
    late = [
        f"{role} ended after {subject.ended[role] - begin:.2f} s"
        for role in survivors
        if not outcome.went_on and subject.ended.get(role, begin) - begin > outcome.bound_s
    ]
    outcome.problems += late


def _right(outcome: Outcome, role: Role) -> tuple[str, ...]:
    """Return the ends of a side that are right."""
    phase, action = outcome.phase, outcome.action
    if phase is Phase.DECODING and role is _P:
        return (FINISHED,)
    if role in action.struck:
        return (DEAD,) if action.kills else (ErrorCode.CANCELLED,)
    if outcome.went_on:
        return (FINISHED,)
    if not action.kills:
        return (ErrorCode.CANCELLED,)
    if phase is Phase.PREFILL_WAITS:
        # No link leads from a prefill engine to one that has not asked: its time ends it, or
        # in a whole system its gateway.
        return (ErrorCode.DEADLINE,)
    return (_LOST[_OTHER[role]],)


async def _free(
    pair: Pair, outcome: Outcome, subjects: list[Subject], survivors: list[Role], begin: float
) -> float | None:
    if outcome.went_on:
        begin = max(one.ended.get(_D, begin) for one in subjects)
    return await pair.free_after(begin, survivors, outcome.bound_s)


async def _come_late(pair: Pair, outcome: Outcome, subject: Subject, survivors: list[Role]) -> None:
    """Tell the other side of a request that is over: it must end soon, and hold nothing."""
    role = _OTHER[_ALONE[outcome.phase]]
    begin = time.monotonic()
    subject.start(role)
    end = (await subject.settle(outcome.bound_s))[role]
    seen = _word(end)
    outcome.ends[f"late {role}"] = seen
    right = _LOST[_ALONE[outcome.phase]] if outcome.action.kills else ErrorCode.CANCELLED
    if seen != right:
        outcome.problems.append(f"late {role} ended with {seen}, not {right}")
    if await pair.free_after(begin, survivors, outcome.bound_s) is None:
        outcome.problems.append(f"held for the late {role}: {pair.load(role)}")


async def _next(pair: Pair, outcome: Outcome) -> None:
    """Start again what was killed, and prove that the pair answers as before."""
    if outcome.action.kills:
        for role in outcome.action.struck:
            async with asyncio.timeout(outcome.bound_s):
                reason = await pair.rig.engines[role].wait_dead()
            if outcome.action.child and str(pair.scheduler(role)) not in reason:
                outcome.problems.append(f"the reason of {role} does not name its child: {reason}")
            if left := await pair.restart(role):
                outcome.problems.append(left)
    begin = time.monotonic()
    problem = await pair.probe()
    outcome.next = problem or f"{1000 * (time.monotonic() - begin):.0f} ms"
    if problem:
        outcome.problems.append(f"next request: {problem}")


async def _renew(pair: Pair) -> None:
    """Start both engines again: the next cell is to be judged by itself."""
    await asyncio.gather(*(pair.restart(role) for role in PAIR))
    await pair.probe()


def _word(end: End | None) -> str:
    if end is None:
        return SILENT
    if isinstance(end, EngineDead):
        return DEAD
    return end.code if isinstance(end, JobFailed) else FINISHED
