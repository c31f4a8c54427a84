"""Draws the world of a seed."""

from __future__ import annotations

import random

from tests.sim.scenario.asks import draw_asks
from tests.sim.scenario.cells import CELLS, Cell, steered
from tests.sim.scenario.plan import Fault, Frame, Scenario
from tests.sim.scenario.random_faults import SHAPED, random_fault

__all__ = ["SHAPES", "draw"]

_HEAL_S = 16.0
_LONG_HEAL_S = 32.0
_FORGOTTEN_S = 58.0
_STEP = 8
"""Neighbours look at cells that lie apart."""

SHAPES = {
    "usual": (38, "up to four faults, one of them at a chosen moment of a request"),
    "quiet": (5, "nothing goes wrong"),
    "guests": (4, "the first reader of a key leaves, others read on at the other gateway"),
    "gentle": (6, "a rolling restart with time for what runs"),
    "hurried": (3, "workers shut down before their work has ended"),
    "operated": (3, "operators cancel, through a gateway or in the ledger"),
    "lossy": (6, "a few stream messages are lost, doubled, late"),
    "late": (9, "old copies of control messages arrive, or old records are read"),
    "echo": (3, "a decode is silent for so long that it counts as lost, and goes on"),
    "storm": (4, "many requests at one gateway, and their decodes die"),
    "orphaned": (7, "a gateway dies, and others read what it owned"),
    "isolated": (4, "a process is cut off for longer than anybody waits"),
    "mixed": (6, "workers of two versions"),
    "forgotten": (2, "a key comes back after its failure has been forgotten"),
}
"""Kinds of worlds: how many in a hundred, and what they are."""

_WORKERS = frozenset({"prefill", "decode", "aggregated"})
_FIELDS = (
    *("revision", "tokenizer", "dtype", "kv_dtype", "kv_layout", "page_size", "layers"),
    *("kv_heads", "head_dim", "tp", "pp", "attention", "engine", "engine_version", "protocol"),
    *("draft", "context_tokens"),
)
"""All of the card but the model's name, which would be another model."""


def _schedule() -> tuple[str, ...]:
    """Return the kinds of a hundred seeds in a row."""
    kinds = [shape for shape, (weight, _) in SHAPES.items() for _ in range(weight)]
    random.Random("schedule").shuffle(kinds)
    return tuple(kinds)


_SCHEDULE = _schedule()


def draw(seed: int) -> Scenario:
    """Return the world of a seed."""
    rng = random.Random(f"scenario {seed}")
    shape = _SCHEDULE[seed % len(_SCHEDULE)]
    frame = _frame(rng, shape)
    odd_field, odd = _versions(rng, frame)
    slow = shape in {"isolated", "guests", "orphaned", "echo"}
    linger_s = 3.5 if shape == "hurried" else rng.choice((0.0, 0.0, 0.5, 1.5, 3.5, 3.5))
    return Scenario(
        seed=seed,
        shape=shape,
        shuffle=rng.random() < 0.7,
        names=frame.names,
        skew_ms={name: rng.uniform(-200.0, 200.0) for name in frame.names},
        asks=draw_asks(rng, frame),
        faults=_faults(rng, seed, frame),
        heal_s=frame.heal_s,
        step_s=rng.uniform(0.06, 0.1) if slow else 10 ** rng.uniform(-1.8, -1.0),
        prefill_tokens_s=10 ** rng.uniform(2.0, 3.5),
        linger_s=linger_s,
        odd_field=odd_field,
        odd=odd,
    )


def _frame(rng: random.Random, shape: str) -> Frame:
    # Either everything comes at once, or over seven seconds.
    span_s = rng.choice((1.0, 1.0, 7.0))
    # In one world of seven faults may last longer than anybody waits.
    long = shape == "usual" and rng.random() < 1 / 7
    first_s = rng.uniform(3.0, 10.0 - span_s)
    heal_s = _HEAL_S
    if shape in {"gentle", "hurried"}:
        first_s, span_s = 3.5, 14.0 if shape == "gentle" else 4.0
    elif shape in {"storm", "orphaned", "guests", "isolated", "echo"}:
        first_s, span_s = 3.5, 0.5
    if long or shape in {"gentle", "isolated", "guests", "orphaned"}:
        heal_s = _LONG_HEAL_S
    elif shape == "forgotten":
        heal_s = _FORGOTTEN_S
    return Frame(shape, _names(rng, shape), first_s, span_s, heal_s, 1.3 if long else 0.6)


def _names(rng: random.Random, shape: str) -> dict[str, str]:
    counts = {
        "gateway": 2,
        "router": 2 if shape == "gentle" else rng.choice((1, 2)),
        "prefill": 2,
        "decode": 2,
        "aggregated": rng.choice((0, 1)) if shape == "mixed" else rng.choice((0, 0, 0, 1)),
        "cleanup": 1,
    }
    return {f"{role}-{n}": role for role, count in counts.items() for n in range(count)}


def _versions(rng: random.Random, frame: Frame) -> tuple[str, dict[str, int]]:
    """Return the field in which workers differ, and from which life on each is another."""
    if frame.shape != "mixed":
        return "", {}
    name = rng.choice(_FIELDS)
    if rng.random() < 0.4:
        # An upgrade in the middle: whoever starts again comes back as the new version.
        return name, {worker: 2 for worker, role in frame.names.items() if role in _WORKERS}
    whole = rng.random() < 0.5
    kind = rng.choice(("prefill", "decode"))
    odd = [worker for worker, role in frame.names.items() if role == kind]
    return name, dict.fromkeys(odd if whole else odd[:1], 1)


def _faults(rng: random.Random, seed: int, frame: Frame) -> tuple[Fault, ...]:
    shaped = SHAPED.get(frame.shape)
    if shaped is not None:
        return shaped(rng, frame)
    if frame.shape == "mixed":
        return tuple(random_fault(rng, frame) for _ in range(rng.randint(1, 3)))
    more = rng.choice((0, 0, 1, 1, 2, 3))
    row, state = _cell(seed)
    first = steered(rng, row, state, frame.most)
    return (first, *(random_fault(rng, frame) for _ in range(more)))


def _cell(seed: int) -> Cell:
    """Return the cell that a usual world looks at: one after the other, far ones next."""
    rounds, place = divmod(seed, len(_SCHEDULE))
    usual = rounds * _SCHEDULE.count("usual") + _SCHEDULE[:place].count("usual")
    return CELLS[usual * _STEP % len(CELLS)]
