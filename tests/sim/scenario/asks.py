"""Draws what clients ask, and ask again."""

from __future__ import annotations

import random
from dataclasses import replace

from services.gateway.api import Recover
from tests.sim.scenario.plan import After, AskPlan, Body, Frame

__all__ = ["draw_asks"]

_KEYED = 0.45
_LEFT = 0.22
_LONG = 0.15
"""The part of the requests that have long answers."""
_COUNTS = {
    "storm": 8,
    "isolated": 3,
    "forgotten": 3,
    "gentle": 8,
    "hurried": 6,
    "guests": 2,
    "orphaned": 2,
    "echo": 4,
}
_ALL_KEYED = frozenset({"forgotten", "lossy"})
_SHARED = frozenset({"guests", "orphaned"})
_LASTING = frozenset({"guests", "orphaned", "isolated", "echo"})


def draw_asks(rng: random.Random, frame: Frame) -> tuple[AskPlan, ...]:
    """Return all asks of a world, in the order of their numbers."""
    asks: list[AskPlan] = []
    shape = frame.shape
    for number in range(_COUNTS.get(shape) or rng.randint(3, 6)):
        plan = _plan(rng, frame, number, len(asks))
        if shape in _SHARED:
            asks += _shared(rng, shape, plan)
        elif shape in {"storm", "echo"}:
            asks.append(plan)
        elif shape in {"late", "lossy"} and rng.random() < 0.5:
            body = replace(plan.body, temperature=1.0) if shape == "late" else plan.body
            asks += _shared(rng, shape, replace(plan, body=body))
        elif shape in _ALL_KEYED or rng.random() < _KEYED:
            asks += _keyed(rng, shape, plan)
        else:
            asks.append(_manners(rng, plan))
    return tuple(asks)


def _plan(rng: random.Random, frame: Frame, number: int, place: int) -> AskPlan:
    shape = frame.shape
    long = 0.5 if shape in {"lossy", "late"} else _LONG
    body = _body(rng, number, long=shape in _LASTING or rng.random() < long)
    deadline_s = rng.choice((8.0, 15.0, 20.0))
    recover = rng.choice((Recover.NEVER, Recover.GREEDY, Recover.ANY, Recover.ANY))
    gateway = rng.randrange(2)
    if shape == "storm":
        body = replace(body, prompt_tokens=body.prompt_tokens % 60 + 1, penalty=0.0, max_tokens=100)
        deadline_s, recover, gateway = 20.0, Recover.ANY, 0
    elif shape == "echo":
        most = rng.randint(70, 130)
        body = replace(body, prompt_tokens=9, max_tokens=most, penalty=0.0, temperature=1.0)
        deadline_s, recover = 20.0, Recover.ANY
    elif shape in _LASTING:
        body = replace(body, prompt_tokens=body.prompt_tokens % 40 + 1)
        deadline_s = 32.0
        if shape == "orphaned" and rng.random() < 0.5:
            # Over before anybody has noticed that its gateway is gone.
            body = replace(body, max_tokens=60, no_stop=False, penalty=0.0)
            recover = Recover.ANY
    return AskPlan(
        number=place,
        at_s=frame.first_s + rng.random() * frame.span_s,
        gateway=gateway,
        body=body,
        deadline_s=deadline_s,
        recover=recover,
        mode=_mode(rng, shape),
    )


def _shared(rng: random.Random, shape: str, plan: AskPlan) -> list[AskPlan]:
    """Return an ask with a key that others, at the other gateway, read too."""
    plan = replace(plan, key=f"key {plan.body.number}")
    first = plan
    if shape == "guests":
        first = replace(plan, leave_after_s=rng.uniform(0.5, 2.0))
    other = 1 - plan.gateway
    late = (-2.0, 0.0) if shape != "lossy" else (0.0, 0.7)
    asks = [first]
    for _ in range(rng.choice((1, 1, 2))):
        after = After(plan.number, rng.choice(("sent", "token")), 10 ** rng.uniform(*late))
        number = plan.number + len(asks)
        asks.append(replace(plan, number=number, after=after, gateway=other, at_s=plan.at_s + 6.0))
    return asks


def _mode(rng: random.Random, shape: str) -> str | None:
    if shape != "mixed":
        return None
    return rng.choice((None, None, "disaggregated", "disaggregated", "aggregated"))


def _body(rng: random.Random, number: int, *, long: bool) -> Body:
    return Body(
        number=number,
        prompt_tokens=int(10 ** rng.uniform(0.0, 2.5)),
        max_tokens=int(rng.uniform(150, 400) if long else 10 ** rng.uniform(0.0, 2.0)),
        no_stop=long,
        temperature=rng.choice((0.0, 0.0, 1.0)),
        penalty=rng.choice((0.0, 0.0, 0.0, 0.5)),
    )


def _manners(rng: random.Random, plan: AskPlan, left: float = _LEFT) -> AskPlan:
    """Let some clients leave, read slowly, or stop to read."""
    again = plan.after is not None
    chance = rng.random()
    if chance < left * 0.7:
        # Most of a request's life is short: draw from a scale that meets every phase.
        return replace(plan, leave_after_s=10 ** rng.uniform(-2.7, 0.7))
    if chance < left:
        return _stays(replace(plan, leave_at_token=int(10 ** rng.uniform(0.0, 1.5))), again)
    if chance < left + 0.06:
        return replace(plan, pace_s=10 ** rng.uniform(-2.0, -0.3))
    if chance < left + 0.08:
        return _stays(replace(plan, stall_at_token=int(10 ** rng.uniform(0.0, 1.0))), again)
    return plan


def _stays(plan: AskPlan, again: bool) -> AskPlan:
    """Do not let the answer be over too early; who comes again asks for the same as before."""
    return plan if again else replace(plan, body=replace(plan.body, no_stop=True))


def _keyed(rng: random.Random, shape: str, plan: AskPlan) -> list[AskPlan]:
    """Return an ask with a key, and those that come again with it."""
    plan = replace(plan, key=f"key {plan.body.number}")
    first = _manners(rng, plan, left=0.5)
    asks = [first]
    body = first.body
    latest_s = 44.0 if shape == "forgotten" else 8.0
    for _ in range(rng.choice((1, 1, 2, 3, 7))):
        number = plan.number + len(asks)
        again = replace(plan, number=number, body=body, gateway=rng.randrange(2))
        again = replace(again, after=_after(rng, shape, first), at_s=plan.at_s + latest_s)
        chance = rng.random()
        if chance < 0.1:
            # Another tenant happens to use the same key for another question.
            other = replace(body, number=100 + number)
            again = replace(again, tenant="two", body=other)
        elif chance < 0.2:
            again = replace(again, body=replace(body, number=100 + number))
        elif chance < 0.3:
            again = replace(again, recover=Recover.NEVER)
        asks.append(_manners(rng, again, left=0.1))
    return asks


def _after(rng: random.Random, shape: str, first: AskPlan) -> After:
    if shape == "forgotten":
        return After(first.number, "ended", rng.choice((1.0, 31.0, 33.0, 36.0)))
    event = rng.choice(("sent", "sent", "token", "ended", "ended", "left", "left"))
    leaves = first.leave_after_s is not None or first.leave_at_token is not None
    if event == "left" and not leaves:
        event = "sent"
    delay_s = 0.0 if rng.random() < 0.3 else 10 ** rng.uniform(-3.0, 0.8)
    return After(first.number, event, delay_s)
