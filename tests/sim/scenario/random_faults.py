"""Faults that come at any moment, and those of worlds with one subject."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.sim.scenario.cells import duration, steered
from tests.sim.scenario.plan import Fault, Frame, State, When

__all__ = ["SHAPED", "random_fault"]

_KINDS = (
    *("crash",) * 4,
    *("drain",) * 2,
    *("engine",) * 2,
    *("pause",) * 2,
    *("cut",) * 2,
    *("outage",) * 2,
    *("loss",) * 5,
    "plane-cut",
    "plane-stall",
    *("slow",) * 2,
    *("store",) * 2,
    *("cancel",) * 2,
    "clock",
)
_GRACE_S = 40.0
_CONTROL = (
    *(".place", ".place", ".place", ".reserve", ".start", ".start", ".start"),
    *(".claim", ".abort", ".cancel.", ".replay", "pdbus."),
)


def random_fault(rng: random.Random, frame: Frame) -> Fault:
    """Return one fault, around the time of the requests."""
    names = frame.names
    everyone = sorted(names)
    workers = [name for name in everyone if names[name] in {"prefill", "decode", "aggregated"}]
    at = frame.first_s - 0.5 + rng.random() * (frame.span_s + 2.0)
    kind = rng.choice(_KINDS)
    short = duration(rng, kind, frame.most)
    if kind == "crash":
        # `value`: the server notices at once, or after so many seconds.
        linger = rng.choice((0.0, 0.0, 3.0))
        return Fault(kind, at, short, rng.choice(everyone), value=linger)
    if kind in {"drain", "pause", "cut", "clock"}:
        target = rng.choice(everyone)
        return Fault(kind, at, short, target, value=rng.random(), flag=rng.random() < 0.5)
    if kind == "plane-cut":
        prefill = rng.choice([name for name in workers if names[name] == "prefill"])
        decode = rng.choice([name for name in workers if names[name] == "decode"])
        return Fault(kind, at, short, prefill, decode)
    if kind in {"engine", "slow"}:
        slowness = 10 ** rng.uniform(0.3, 1.3)
        return Fault(kind, at, short * 2, rng.choice(workers), value=slowness)
    return Fault(kind, at, short, value=rng.random(), flag=rng.random() < 0.5)


def _quiet(_rng: random.Random, _frame: Frame) -> tuple[Fault, ...]:
    return ()


def _gentle(rng: random.Random, frame: Frame) -> tuple[Fault, ...]:
    """Restart some workers and routers, one after the other, each with a long grace."""
    roles = {"prefill", "decode", "router"}
    everyone = [name for name in sorted(frame.names) if frame.names[name] in roles]
    rng.shuffle(everyone)
    rolled = ",".join(everyone[: rng.randint(1, len(everyone))])
    at_s = frame.first_s + rng.random()
    return (Fault("roll", at_s, _GRACE_S, rolled, flag=rng.random() < 0.5),)


def _lossy(_rng: random.Random, frame: Frame) -> tuple[Fault, ...]:
    return (Fault("loss", frame.first_s, 8.0, ".tokens.", other="little"),)


def _late(rng: random.Random, frame: Frame) -> tuple[Fault, ...]:
    """Let old copies of control messages arrive, or old records be read, as attempts fail."""
    late = Fault("loss", frame.first_s, 8.0, rng.choice(_CONTROL), other="copies")
    if rng.random() < 0.25:
        return (Fault("store", frame.first_s - 0.5, 8.0, value=rng.random()),)
    row = rng.choice(("decode engine dies", "prefill engine dies", "decode killed"))
    state = rng.choice((State.S3, State.S5))
    return late, steered(rng, row, state, 0.0), steered(rng, "client leaves", State.S2, 0.0)


def _storm(rng: random.Random, frame: Frame) -> tuple[Fault, ...]:
    """Let the decodes die one after the other, with all that they run."""
    at_s = frame.first_s + frame.span_s + rng.uniform(0.3, 1.0)
    kind = rng.choice(("engine", "engine", "crash"))
    first, second = rng.sample(("decode-0", "decode-1"), 2)
    return (
        Fault(kind, at_s, 0.1, first),
        Fault(kind, at_s + rng.uniform(1.6, 3.0), 0.1, second),
    )


def _orphaned(rng: random.Random, _frame: Frame) -> tuple[Fault, ...]:
    if rng.random() < 0.35:
        # Decode has said all, and dies before anybody has noticed that the owner is gone.
        nth = rng.choice((0, 1))
        lost = Fault("crash", 0.0, 8.0, "gateway", when=When(State.S5, nth, rng.random() * 0.3))
        return lost, Fault("engine", 0.0, 0.0, "decode", when=When(State.S5, nth, 2.5))
    kind = rng.choice(("crash", "crash", "cut", "pause"))
    when = When(rng.choice((State.S3, State.S5, State.S5)), rng.choice((0, 1)), rng.random() * 2)
    lasting = rng.uniform(6.0, 9.0)
    first = Fault(kind, 0.0, lasting, "gateway", value=0.0, flag=rng.random() < 0.5, when=when)
    if rng.random() < 0.4:
        return (first,)
    # The new owner loses its attempt too, or never finds it.
    kind = rng.choice(("engine", "crash"))
    after_s = rng.choice((3.0, 7.0))
    return first, Fault(kind, 0.0, 0.5, "decode", when=When(State.S5, 0, after_s))


def _echo(rng: random.Random, _frame: Frame) -> tuple[Fault, ...]:
    """Let a decode be silent until its attempt is given up, and speak again."""
    kind = rng.choice(("cut", "pause"))
    when = When(State.S5, rng.choice((0, 1, 2)), rng.random() * 0.5)
    silent_s = rng.uniform(3.3, 5.0)
    return (Fault(kind, 0.0, silent_s, "decode", "unnoticed", flag=kind == "cut", when=when),)


def _hurried(rng: random.Random, frame: Frame) -> tuple[Fault, ...]:
    """Shut workers down, each while a request of its own runs."""
    del frame
    roles = rng.sample(("prefill", "decode", "decode"), 2)
    return tuple(
        Fault(
            "drain",
            0.0,
            rng.uniform(0.0, 0.5),
            role,
            flag=rng.random() < 0.5,
            when=When(State.S3 if role == "prefill" else State.S5, place, 0.0),
        )
        for place, role in enumerate(roles)
    )


def _operated(rng: random.Random, _frame: Frame) -> tuple[Fault, ...]:
    """Cancel some requests, each in a state of its own."""
    return tuple(
        Fault(
            "cancel",
            0.0,
            0.0,
            value=0.0,
            flag=rng.random() < 0.6,
            when=When(rng.choice(list(State)), rng.randrange(3), rng.random() * 0.1),
        )
        for _ in range(rng.randint(1, 4))
    )


def _isolated(rng: random.Random, _frame: Frame) -> tuple[Fault, ...]:
    """Cut a process off for longer than anybody waits."""
    role = rng.choice(("decode", "decode", "decode", "prefill", "gateway"))
    state = State.S5 if role != "prefill" else rng.choice((State.S3, State.S5))
    return (
        Fault(
            "cut",
            0.0,
            rng.uniform(20.0, 26.0),
            role,
            value=rng.random(),
            flag=rng.random() < 0.5,
            when=When(state, 0, rng.random() * 0.3),
        ),
    )


SHAPED: dict[str, Callable[[random.Random, Frame], tuple[Fault, ...]]] = {
    "quiet": _quiet,
    "guests": _quiet,
    "gentle": _gentle,
    "lossy": _lossy,
    "late": _late,
    "storm": _storm,
    "orphaned": _orphaned,
    "echo": _echo,
    "hurried": _hurried,
    "operated": _operated,
    "isolated": _isolated,
}
"""The faults of worlds that are not drawn freely."""
