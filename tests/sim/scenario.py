"""What a seed means: the size of the world, its requests, and its faults. Pure drawing."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

__all__ = ["Fault", "RequestPlan", "Scenario", "draw"]

HEAL_S = 16.0
_LONG_HEAL_S = 32.0
_ECHO_S = 3.0
"""Longest time until a cut is noticed, and until all have reconnected."""
_CANCELLED = 0.25
_LONG = 0.15
"""The part of the requests that have long answers."""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """One request of one client."""

    number: int
    at_s: float
    gateway: int
    prompt_tokens: int
    max_tokens: int
    deadline_s: float
    cancel_after_s: float | None
    cancel_at_token: int | None = None
    """Leave when so many tokens have come."""
    no_stop: bool = False
    """Give all tokens, whatever they are."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, from `at_s` for `for_s` seconds."""

    kind: str
    at_s: float
    for_s: float
    target: str = ""
    other: str = ""
    value: float = 0.0
    flag: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole world, before it runs."""

    seed: int
    shuffle: bool
    gateways: int
    routers: int
    prefills: int
    decodes: int
    aggregated: int
    skew_ms: dict[str, float]
    requests: tuple[RequestPlan, ...]
    faults: tuple[Fault, ...]
    heal_s: float = HEAL_S
    names: dict[str, str] = field(default_factory=dict)
    """Process name to role."""
    step_s: float = 0.03
    prefill_tokens_s: float = 2000.0

    @property
    def quiet_s(self) -> float:
        """When the last fault has ended and its echoes have died away."""
        return max((f.at_s + 2 * f.for_s + f.value for f in self.faults), default=0.0) + _ECHO_S


def draw(seed: int) -> Scenario:
    """Return the world of a seed."""
    rng = random.Random(f"scenario {seed}")
    counts = {
        "gateway": 2,
        "router": rng.choice((1, 2)),
        "prefill": 2,
        "decode": 2,
        "aggregated": rng.choice((0, 0, 0, 1)),
        "cleanup": 1,
    }
    # Either everything comes at once, or over seven seconds.
    span_s = rng.choice((1.0, 1.0, 7.0))
    first_s = rng.uniform(3.0, 10.0 - span_s)
    # In one world of seven faults may last longer than anybody waits.
    long = rng.random() < 1 / 7
    most = 1.3 if long else 0.6
    names = {f"{role}-{n}": role for role, count in counts.items() for n in range(count)}
    return Scenario(
        seed=seed,
        shuffle=rng.random() < 0.7,
        gateways=counts["gateway"],
        routers=counts["router"],
        prefills=counts["prefill"],
        decodes=counts["decode"],
        aggregated=counts["aggregated"],
        skew_ms={name: rng.uniform(-200.0, 200.0) for name in names},
        requests=tuple(_request(rng, n, first_s, span_s) for n in range(rng.randint(4, 8))),
        faults=tuple(_fault(rng, names, first_s, span_s, most) for _ in range(rng.randint(0, 4))),
        heal_s=_LONG_HEAL_S if long else HEAL_S,
        names=names,
        step_s=10 ** rng.uniform(-1.8, -1.0),
        prefill_tokens_s=10 ** rng.uniform(2.0, 3.5),
    )


def _request(rng: random.Random, number: int, first_s: float, span_s: float) -> RequestPlan:
    cancel = cancel_at = None
    chance = rng.random()
    if chance < _CANCELLED:
        # Most of a request's life is short: draw from a scale that meets every phase.
        cancel = 10 ** rng.uniform(-2.7, 0.7)
    elif chance < _CANCELLED * 1.5:
        cancel_at = int(10 ** rng.uniform(0.0, 1.5))
    long = rng.random() < _LONG
    return RequestPlan(
        number=number,
        at_s=first_s + rng.random() * span_s,
        gateway=rng.randrange(2),
        prompt_tokens=int(10 ** rng.uniform(0.0, 2.5)),
        max_tokens=int(rng.uniform(150, 400) if long else 10 ** rng.uniform(0.0, 2.0)),
        deadline_s=rng.choice((8.0, 15.0, 20.0)),
        cancel_after_s=cancel,
        cancel_at_token=cancel_at,
        no_stop=long or cancel_at is not None,
    )


def _fault(
    rng: random.Random, names: dict[str, str], first_s: float, span_s: float, most: float
) -> Fault:
    everyone = sorted(names)
    workers = [name for name in everyone if names[name] in {"prefill", "decode", "aggregated"}]
    at = first_s - 0.5 + rng.random() * (span_s + 2.0)
    short = 10 ** rng.uniform(-1.0, most)
    kind = rng.choice(
        (
            "crash",
            "crash",
            "crash",
            "drain",
            "drain",
            "engine",
            "pause",
            "cut",
            "cut",
            "outage",
            "loss",
            "loss",
            "plane-cut",
            "plane-stall",
            "slow",
            "store",
        )
    )
    if kind in {"crash", "drain", "pause", "cut"}:
        # `value`: the server notices at once, or after so many seconds.
        return Fault(
            kind,
            at,
            short,
            rng.choice(everyone),
            "",
            rng.choice((0.0, 0.0, 3.0)),
            rng.random() < 0.5,
        )
    if kind == "plane-cut":
        prefill = rng.choice([name for name in workers if names[name] == "prefill"])
        decode = rng.choice([name for name in workers if names[name] == "decode"])
        return Fault(kind, at, short, prefill, decode)
    if kind in {"engine", "slow"}:
        return Fault(kind, at, short * 2, rng.choice(workers), "", 10 ** rng.uniform(0.3, 1.3))
    return Fault(kind, at, short, value=rng.random(), flag=rng.random() < 0.5)
